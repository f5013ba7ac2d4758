//! A server in this process, and initiators that send what they want.

mod access;
mod dialogs;
mod drain;
mod hostile;
mod iser;
mod iser_hostile;
mod iser_landing;
mod landing;
mod live;
mod logins;
mod objects;
mod principals;
mod qos;
mod redirect;
mod remote_unit;
mod replaced;
mod stages;
#[path = "../support/mod.rs"]
mod support;
mod task_management;
mod text;
