//! Names of gateways, their instances, units, map epochs and commands.
//!
//! An [`InstanceId`] is never used twice: a daemon that starts again has another one.

use std::time::Duration;

/// A time of one gateway's own monotonic clock, which also runs while the machine is suspended
/// (CLOCK_BOOTTIME). It means nothing to another gateway and is never sent to one.
pub type Time = Duration;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($number:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);
    };
}

id!(
    /// A gateway of the group, over all its restarts.
    GatewayId(u16)
);
id!(
    /// One life of a gateway: its RADOS client. The driver maps it to the client's addresses.
    InstanceId(u64)
);
id!(
    /// A unit that the group serves.
    UnitId(u32)
);
id!(
    /// An epoch of the cluster's OSD map.
    Epoch(u32)
);
id!(
    /// The version of the group's record: an attribute that is compared and set together with it.
    /// Not RADOS's version of the object, which each heartbeat changes. Each change makes it one
    /// more; an object begins with a number of the instance that makes it.
    Version(u64)
);
