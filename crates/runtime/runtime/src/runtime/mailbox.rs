//! [`Mailbox`]: messages of any thread for one owner, which sleeps while there are none. It makes
//! no system call: who leaves a message learns whether the owner has to be woken.
//!
//! Sleeping and waking meet in two flags. The owner sets a flag that it may sleep, then checks for
//! mail. A sender leaves mail, then checks whether the owner may sleep. One of the two always sees
//! the other.

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use std::sync::PoisonError;

pub(super) struct Mailbox<T> {
    mail: Mutex<Mail<T>>,
    /// Whether a message waits.
    pending: AtomicBool,
    /// Whether the owner may be asleep.
    sleeping: AtomicBool,
}

struct Mail<T> {
    /// Number of owners so far.
    owners: u64,
    /// `None` while there is no owner.
    messages: Option<Vec<T>>,
}

impl<T> Mailbox<T> {
    /// A mailbox without an owner.
    pub(super) fn new() -> Self {
        Self {
            mail: Mutex::new(Mail { owners: 0, messages: None }),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail<T>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has an owner from now on.
    pub(super) fn open(&self) {
        let mut mail = self.mail();
        mail.owners += 1;
        mail.messages = Some(Vec::new());
    }

    /// It has no owner any more, and takes no mail. Mail that is left is dropped.
    pub(super) fn close(&self) {
        let left = self.mail().messages.take();
        drop(left);
        self.pending.store(false, Ordering::Relaxed);
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// The number of the present owner.
    pub(super) fn owner(&self) -> u64 {
        self.mail().owners
    }

    /// Leaves a message for the present owner, or only for the given one. Returns whether the owner
    /// has to be woken.
    ///
    /// # Errors
    /// The message, if that owner has gone.
    pub(super) fn leave(&self, message: T, owner: Option<u64>) -> Result<bool, T> {
        let mut mail = self.mail();
        let is_owner = owner.is_none_or(|owner| owner == mail.owners);
        match &mut mail.messages {
            Some(messages) if is_owner => messages.push(message),
            _ => return Err(message),
        }
        drop(mail);
        self.pending.store(true, Ordering::SeqCst);
        Ok(self.sleeping.swap(false, Ordering::SeqCst))
    }

    /// Records that the owner is about to sleep. Returns false if mail has arrived: then it must
    /// not.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        !self.pending.load(Ordering::SeqCst)
    }

    /// Records that the owner is awake.
    #[inline]
    pub(super) fn awake(&self) {
        if self.sleeping.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Whether there is mail.
    #[inline]
    pub(super) fn has_mail(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Swaps the mail for an empty vector.
    pub(super) fn take(&self, mail: &mut Vec<T>) {
        self.pending.store(false, Ordering::SeqCst);
        if let Some(messages) = &mut self.mail().messages {
            std::mem::swap(messages, mail);
        }
    }
}
