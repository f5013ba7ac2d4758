//! The logical unit of type 11h: T10 OSD commands above any [`crate::store::ObjectStore`].
