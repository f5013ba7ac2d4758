//! Waiting until files are durable: all operations that wait for a file share its flushes.

use std::sync::Arc;

use tree::TreeError;

use crate::base::Base;
use crate::node::Node;

/// Waits until the file is durable, with its attributes if `all`, unless the folder is
/// asynchronous.
pub(crate) async fn flushed(base: &Arc<Base>, node: &Arc<Node>, all: bool) -> Result<(), TreeError> {
    if base.durability.is_asynchronous() {
        return Ok(());
    }
    let group = if all { &node.all } else { &node.data };
    let start = |number| {
        let (base, node) = (Arc::clone(base), Arc::clone(node));
        // It runs to its end, even if no operation waits for it any more.
        drop(runtime::blocking(move || {
            let result = base.durability.flush(&base.descriptors, &node, all);
            let group = if all { &node.all } else { &node.data };
            group.ended(number, result);
        }));
    };
    group.flushed(start).await
}

/// The same for changes that began when `failures` flushes of the folder had failed. If another
/// flush of the file has failed since, the changes may be lost.
///
/// # Errors
/// That of the flush; EIO if another has failed.
pub(crate) async fn kept(
    base: &Arc<Base>,
    node: &Arc<Node>,
    all: bool,
    failures: u64,
) -> Result<(), TreeError> {
    flushed(base, node, all).await?;
    if base.durability.is_asynchronous() { Ok(()) } else { base.durability.check(node, failures) }
}
