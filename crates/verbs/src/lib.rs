//! rdma-core verbs and its connection manager, loaded at run time, behind a safe interface. Beside `ring` the one crate with `unsafe`.
