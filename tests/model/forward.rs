//! The calls that the services of the tests pass on to their model.

/// The calls of [`lockstep_driver::client::FileService`] that go to `self.model` as they are.
macro_rules! forward_to_model {
    () => {
        fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
            self.model.getxattr(ino, name)
        }

        fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
            self.model.listxattr(ino)
        }

        fn readdir(
            &self,
            directory: Ino,
            after: u64,
            each: &mut dyn FnMut(lockstep_driver::client::DirEntry) -> std::ops::ControlFlow<()>,
        ) -> Result<(), Errno> {
            self.model.readdir(directory, after, each)
        }

        fn space(&self) -> Result<lockstep_types::backing::Space, Errno> {
            self.model.space()
        }

        fn seek(
            &self,
            ino: Ino,
            offset: u64,
            what: lockstep_driver::client::Seek,
        ) -> Result<u64, Errno> {
            self.model.seek(ino, offset, what)
        }

        fn opened(&self, ino: Ino) -> Result<(), Errno> {
            self.model.opened(ino)
        }

        fn closed(&self, ino: Ino) {
            self.model.closed(ino);
        }

        fn remembered(&self, ino: Ino, count: u64) {
            self.model.remembered(ino, count);
        }

        fn forgotten(&self, ino: Ino, count: u64) {
            self.model.forgotten(ino, count);
        }

        fn read(
            &self,
            ino: Ino,
            offset: u64,
            length: usize,
            done: lockstep_driver::client::ReadDone,
        ) {
            self.model.read(ino, offset, length, done);
        }
    };
}

pub(crate) use forward_to_model;
