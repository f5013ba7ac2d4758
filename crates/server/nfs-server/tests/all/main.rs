//! A server in this process, and clients that send what they want.

mod calls;
mod client;
mod conform;
mod groups;
mod hostile;
mod limits;
mod rdma;
mod slow;
mod support;
mod v4;
