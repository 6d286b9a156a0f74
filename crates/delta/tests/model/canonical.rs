//! One state for all states that differ in labels only: a value counts by the places that have it, a sync by its order.

use crate::world::{Here, PARTS, PLACES, RECORD, Survived, World};

/// Labels in the order in which they are met.
struct Order {
    met: Vec<u8>,
}

impl Order {
    fn label(&mut self, value: u8) -> u8 {
        let position = self.met.iter().position(|met| *met == value);
        let position = position.unwrap_or_else(|| {
            self.met.push(value);
            self.met.len() - 1
        });
        u8::try_from(position).unwrap()
    }
}

impl World {
    /// The same state with canonical labels.
    pub fn canonical(mut self) -> Self {
        self.relabel_values();
        self.relabel_syncs();
        self.drop_idle_knowledge();
        (self.survived, self.has_resumed) = (Survived::default(), false);
        self
    }

    /// The announced regions matter to later writes and to those that wait, and the word of the next interval to a later barrier. A mark that
    /// no write needs hides no difference.
    fn drop_idle_knowledge(&mut self) {
        if self.left.writes == 0 {
            self.announced.forget_all();
            for (announcing, write) in self.announcing.iter_mut().zip(&self.writes) {
                if write.is_none_or(|write| write.here != Here::Waits) {
                    *announcing = None;
                }
            }
        }
        if self.left.barriers == 0 {
            self.told = None;
        }
    }

    /// Values of different places are never compared.
    fn relabel_values(&mut self) {
        let mut drawn = 0;
        for place in 0..PLACES {
            let mut order = Order { met: Vec::new() };
            for node in &mut self.nodes {
                for value in [&mut node.memory[place], &mut node.stable[place]] {
                    *value = order.label(*value);
                }
                if let Some(saved) = &mut node.saved {
                    saved.stable[place] = order.label(saved.stable[place]);
                }
            }
            if place < PARTS {
                if let Some(write) = &mut self.writes[place] {
                    write.value = order.label(write.value);
                }
            } else if let Some(operation) = &mut self.operation {
                debug_assert_eq!(place, RECORD);
                operation.value = order.label(operation.value);
            }
            drawn = drawn.max(order.met.len());
        }
        self.drawn[0] = u8::try_from(drawn).unwrap();
    }

    fn relabel_syncs(&mut self) {
        let mut order = Order { met: Vec::new() };
        for node in &mut self.nodes {
            for sync in [&mut node.role.rest_since, &mut node.role.copy_of] {
                *sync = sync.map(|sync| order.label(sync));
            }
        }
        self.drawn[1] = u8::try_from(order.met.len()).unwrap();
        let lowest = self.nodes.iter().map(|node| node.role.generation).min();
        let lowest = lowest.unwrap_or(0);
        for node in &mut self.nodes {
            node.role.generation -= lowest;
        }
    }
}
