//! What stores of tests that stand before another one leave to it, word for word.

/// The methods of `ObjectStore` that no store before another has a mind of its own about, each passed on to the store in field `$to`.
/// Left to be written are `object`, `read`, `apply` and `sync`. The types of `store` are to be in scope.
macro_rules! passed_on {
    ($to:ident) => {
        fn root(&self) -> RootInfo {
            self.$to.root()
        }
        fn partition(&self, id: u64) -> Result<PartitionInfo, Error> {
            self.$to.partition(id)
        }
        fn times(&self, id: Id) -> Result<Times, Error> {
            self.$to.times(id)
        }
        fn touch(&self, id: Id, times: TimesUpdate) {
            self.$to.touch(id, times);
        }
        fn attribute(&self, id: Id, page: u32, number: u32, value: &mut Vec<u8>) -> Result<bool, Error> {
            self.$to.attribute(id, page, number, value)
        }
        fn attributes(
            &self,
            id: Id,
            which: Attributes,
            each: &mut dyn FnMut(Attribute<'_>) -> bool,
        ) -> Result<(), Error> {
            self.$to.attributes(id, which, each)
        }
        fn list(&self, list: List, from: u64, limit: usize, into: &mut Vec<u64>) -> Result<bool, Error> {
            self.$to.list(list, from, limit, into)
        }
        fn membership(&self, collection: Id, object: u64) -> Result<Option<u32>, Error> {
            self.$to.membership(collection, object)
        }
        fn memberships(
            &self,
            object: Id,
            from: u64,
            limit: usize,
            into: &mut Vec<Membership>,
        ) -> Result<bool, Error> {
            self.$to.memberships(object, from, limit, into)
        }
        fn reserve_ids(&self, partition: u64, count: u32) -> Result<u64, Error> {
            self.$to.reserve_ids(partition, count)
        }
        fn extents(
            &self,
            id: Id,
            at: u64,
            len: u64,
            limit: usize,
            into: &mut Vec<Extent>,
        ) -> Result<bool, Error> {
            self.$to.extents(id, at, len, limit, into)
        }
        fn differences(
            &self,
            ids: [Id; 2],
            at: u64,
            len: u64,
            limit: usize,
            into: &mut Vec<Difference>,
        ) -> Result<bool, Error> {
            self.$to.differences(ids, at, len, limit, into)
        }
        fn check(&self, partition: u64, repair: bool) -> Io<CheckReport> {
            self.$to.check(partition, repair)
        }
    };
}
pub(crate) use passed_on;
