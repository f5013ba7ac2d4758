//! Methods of [`super::ObjectStore`] that a store leaves to one of its fields, word for word: the
//! store on a directory to what its cores share, stores of tests to the one that they stand before.

/// `passed_on!(field: method ...)` in an implementation; the types of `store` are to be in scope.
#[rustfmt::skip]
macro_rules! passed_on {
    ($to:ident: $($method:ident)*) => { $(passed_on!(@ $to $method);)* };
    (@ $to:ident root) => { passed_on!(# $to root() -> RootInfo); };
    (@ $to:ident partition) => { passed_on!(# $to partition(id: u64) -> Result<PartitionInfo, Error>); };
    (@ $to:ident object) => { passed_on!(# $to object(id: Id) -> Result<ObjectInfo, Error>); };
    (@ $to:ident times) => { passed_on!(# $to times(id: Id) -> Result<Times, Error>); };
    (@ $to:ident touch) => { passed_on!(# $to touch(id: Id, times: TimesUpdate) -> ()); };
    (@ $to:ident attribute) => { passed_on!(# $to attribute(id: Id, page: u32, number: u32, value: &mut Vec<u8>) -> Result<bool, Error>); };
    (@ $to:ident attributes) => { passed_on!(# $to attributes(id: Id, which: Attributes, each: &mut dyn FnMut(Attribute<'_>) -> bool) -> Result<(), Error>); };
    (@ $to:ident list) => { passed_on!(# $to list(list: List, from: u64, limit: usize, into: &mut Vec<u64>) -> Result<bool, Error>); };
    (@ $to:ident membership) => { passed_on!(# $to membership(collection: Id, object: u64) -> Result<Option<u32>, Error>); };
    (@ $to:ident memberships) => { passed_on!(# $to memberships(object: Id, from: u64, limit: usize, into: &mut Vec<Membership>) -> Result<bool, Error>); };
    (@ $to:ident reserve_ids) => { passed_on!(# $to reserve_ids(partition: u64, count: u32) -> Result<u64, Error>); };
    (@ $to:ident extents) => { passed_on!(# $to extents(id: Id, at: u64, len: u64, limit: usize, into: &mut Vec<Extent>) -> Result<bool, Error>); };
    (@ $to:ident differences) => { passed_on!(# $to differences(ids: [Id; 2], at: u64, len: u64, limit: usize, into: &mut Vec<Difference>) -> Result<bool, Error>); };
    (@ $to:ident check) => { passed_on!(# $to check(partition: u64, repair: bool) -> Io<CheckReport>); };
    (# $to:ident $method:ident($($name:ident: $type:ty),*) -> $result:ty) => {
        fn $method(&self, $($name: $type),*) -> $result { self.$to.$method($($name),*) }
    };
}
pub(crate) use passed_on;
