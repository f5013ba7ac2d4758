//! Threads that leave mail for a core, which sleeps when there is none.

use loom::sync::{Arc, Condvar};

use shipped::Mailbox;
use sync::Mutex;

mod sync {
    pub(super) use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
}

#[allow(dead_code, reason = "models use parts of it")]
#[path = "../../../crates/runtime/runtime/src/runtime/mailbox.rs"]
mod shipped;

/// A mailbox, and what stands for the eventfd that wakes its owner's ring.
struct Core {
    mailbox: Mailbox<u32>,
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Core {
    fn new() -> Arc<Self> {
        let core = Self { mailbox: Mailbox::new(), rung: Mutex::new(false), bell: Condvar::new() };
        core.mailbox.open();
        Arc::new(core)
    }

    /// What a sender does; whether the owner is still there.
    fn send(&self, message: u32, owner: Option<u64>) -> bool {
        match self.mailbox.leave(message, owner) {
            Ok(wakes) if wakes => {
                *locked(&self.rung) = true;
                self.bell.notify_one();
                true
            }
            left => left.is_ok(),
        }
    }

    /// What the owner's loop does, until it has so many messages.
    fn receive(&self, count: usize) -> Vec<u32> {
        let (mut all, mut mail) = (Vec::new(), Vec::new());
        loop {
            if self.mailbox.has_mail() {
                self.mailbox.take(&mut mail);
                all.append(&mut mail);
            }
            if all.len() >= count {
                return all;
            }
            if self.mailbox.may_sleep() {
                let mut rung = locked(&self.rung);
                while !*rung {
                    rung = self.bell.wait(rung).unwrap_or_else(|_| panic!("poisoned"));
                }
                *rung = false;
            }
            self.mailbox.awake();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|_| panic!("poisoned"))
}

/// A core that falls asleep while two threads leave mail gets all of it.
pub fn mail_wakes_a_core_that_falls_asleep() {
    crate::check(3, || {
        let core = Core::new();
        let sender = |message| -> Box<dyn FnOnce()> {
            let core = core.clone();
            Box::new(move || assert!(core.send(message, None)))
        };
        let senders = [sender(1), sender(2)];
        let owner = move || {
            let mut all = core.receive(2);
            all.sort_unstable();
            assert_eq!(all, [1, 2]);
        };
        crate::at_once(senders.into_iter().chain([Box::new(owner) as Box<dyn FnOnce()>]).collect());
    });
}

/// Mail for an owner that has gone never reaches the next one, whose own mail comes.
pub fn late_mail_reaches_no_other_owner() {
    crate::check(3, || {
        let core = Core::new();
        let (first, [one, other]) = (core.mailbox.owner(), [core.clone(), core.clone()]);
        let late = move || _ = one.send(1, Some(first));
        let sender = move || {
            // Until the next owner is there.
            while !other.send(2, Some(first + 1)) {
                loom::thread::yield_now();
            }
        };
        let owner = move || {
            core.mailbox.close();
            core.mailbox.open();
            assert_eq!(core.receive(1), [2]);
        };
        crate::at_once(vec![Box::new(late), Box::new(sender), Box::new(owner)]);
    });
}
