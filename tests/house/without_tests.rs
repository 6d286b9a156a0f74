//! Removes code that is compiled for tests only.

use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ImplItem, Item, Meta, Stmt, TraitItem};

/// Removes all code under `#[cfg(test)]`.
pub fn remove_tests(file: &mut syn::File) {
    Remover.visit_file_mut(file);
}

/// Whether one of the attributes excludes the item from a build without tests.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|it| without_tests(&it) == Some(false))
    })
}

/// The value of a condition in a build without tests; `None` if the value depends on other options.
fn without_tests(condition: &Meta) -> Option<bool> {
    if condition.path().is_ident("test") {
        return Some(false);
    }
    let Meta::List(list) = condition else {
        return None;
    };
    let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let parts = list.parse_args_with(parser).ok()?;
    let mut values = parts.iter().map(without_tests);
    if list.path.is_ident("not") {
        return values.next()?.map(|it| !it);
    }
    let decisive = list.path.is_ident("any");
    if values.clone().any(|it| it == Some(decisive)) {
        return Some(decisive);
    }
    values.all(|it| it == Some(!decisive)).then_some(!decisive)
}

struct Remover;

impl VisitMut for Remover {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_test_only(attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_test_only(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            ImplItem::Fn(it) => !is_test_only(&it.attrs),
            ImplItem::Const(it) => !is_test_only(&it.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, item: &mut syn::ItemTrait) {
        item.items.retain(|item| match item {
            TraitItem::Fn(it) => !is_test_only(&it.attrs),
            _ => true,
        });
        visit_mut::visit_item_trait_mut(self, item);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|statement| match statement {
            Stmt::Item(item) => !is_test_only(attributes(item)),
            Stmt::Local(it) => !is_test_only(&it.attrs),
            _ => true,
        });
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        let kept = std::mem::take(&mut fields.named)
            .into_iter()
            .filter(|field| !is_test_only(&field.attrs));
        fields.named = kept.collect();
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}
