//! How much data the units of a core ask initiators for at once.
//!
//! What R2Ts ask for comes into buffers of the core's pool. If units could ask for more than it has, it would be full of the
//! beginnings of transfers, each waiting for buffers that the others hold. So a unit waits for a grant before it asks for
//! data, goes on with that as long as it asks for no more at a time, and gives it back when it asks for more or has ended. It never
//! waits for one while it holds another, and never between two pieces of the same length: what it holds then (an object's end, a
//! lock) those may wait for who have all other grants. Over iSER it asks for more ahead of its turn, as long as nobody waits.
//!
//! Every connection may hold one grant, however much the others hold: none can keep another from going on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use runtime::{Notify, pool};

use crate::connection::Connection;

thread_local! {
    static CORE: Core = Core::default();
}

#[derive(Default)]
struct Core {
    /// Bytes granted.
    granted: Cell<usize>,
    /// Connections of which tasks wait.
    waiting: RefCell<VecDeque<Weak<Connection>>>,
}

/// One connection's part.
#[derive(Default)]
pub(crate) struct Grants {
    granted: Cell<usize>,
    /// Its tasks that wait.
    waiters: Notify,
    /// Whether the core knows that there are some.
    known: Cell<bool>,
}

/// The part of the pool's bytes that may be asked for: data may come in pieces for which buffers are up to twice as long,
/// and what comes unasked, reads and the copies of stores need buffers too.
const PART: usize = 4;

/// Grants a task of `connection` `len` bytes, or leaves its waker.
pub(crate) fn poll_take(connection: &Rc<Connection>, len: usize, cx: &mut Context<'_>) -> Poll<()> {
    CORE.with(|core| {
        let own = &connection.grants;
        let fits = core.granted.get() + len <= pool::stats().limit / PART;
        if fits || own.granted.get() == 0 {
            own.granted.set(own.granted.get() + len);
            core.granted.set(core.granted.get() + len);
            return Poll::Ready(());
        }
        own.waiters.register(cx.waker());
        if !own.known.replace(true) {
            core.waiting.borrow_mut().push_back(Rc::downgrade(connection));
        }
        Poll::Pending
    })
}

/// Grants a task of `connection` `len` bytes more if nobody has to wait for that: what it may ask for ahead of its turn.
pub(crate) fn try_take(connection: &Connection, len: usize) -> bool {
    CORE.with(|core| {
        let own = &connection.grants;
        let fits = core.waiting.borrow().is_empty() && core.granted.get() + len <= pool::stats().limit / PART;
        if fits {
            own.granted.set(own.granted.get() + len);
            core.granted.set(core.granted.get() + len);
        }
        fits
    })
}

/// A task of `connection` gives `len` bytes back.
pub(crate) fn give_back(connection: &Connection, len: usize) {
    if len == 0 {
        return;
    }
    // When the thread ends there is nobody left to give to.
    let _ = CORE.try_with(|core| {
        let own = &connection.grants;
        own.granted.set(own.granted.get() - len);
        core.granted.set(core.granted.get() - len);
        // A connection with waiters holds a grant, so each is woken by itself sooner or later; the others in turn before.
        own.waiters.notify();
        while let Some(next) = core.waiting.borrow_mut().pop_front() {
            if let Some(next) = next.upgrade() {
                next.grants.known.set(false);
                next.grants.waiters.notify();
                break;
            }
        }
    });
}
