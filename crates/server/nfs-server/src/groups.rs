//! [`Groups`]: the groups of users as this machine knows them, in place of those that clients
//! claim. AUTH_SYS carries 16. Look-ups block, so no core makes any; a few are made at once,
//! however many users clients invent.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::config::GroupLookup;

/// Users whose groups are cached at most.
const KEPT: usize = 4096;
/// Time for which they are cached.
pub(crate) const FRESH: Duration = Duration::from_secs(300);
/// Look-ups at once. The threads that make them also change files.
const AT_ONCE: usize = 2;

/// A user's groups, and until when they are kept.
pub(crate) type Member = (Arc<[u32]>, Instant);

/// The groups of users.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Known>);

#[derive(Default)]
struct Known {
    users: HashMap<u32, Member>,
    /// Users whose look-up is running.
    running: Vec<u32>,
    waiting: Vec<Waker>,
}

impl Groups {
    /// The groups of `uid`. A user that the machine does not know has none.
    pub(crate) async fn of(&self, uid: u32, lookup: &GroupLookup) -> Member {
        let known = poll_fn(|cx| {
            let mut known = self.known();
            match known.users.get(&uid) {
                Some(member) if runtime::now() < member.1 => return Poll::Ready(Some(member.clone())),
                _ => {}
            }
            if known.running.contains(&uid) || known.running.len() >= AT_ONCE {
                known.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            known.running.push(uid);
            Poll::Ready(None)
        })
        .await;
        if let Some(member) = known {
            return member;
        }
        let running = Running { groups: self, uid };
        let lookup = lookup.clone();
        let found = runtime::blocking(move || lookup(uid)).await.unwrap_or_default();
        let member: Member = (found.into(), runtime::now() + FRESH);
        running.groups.known().keep(uid, member.clone());
        member
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn keep(&mut self, uid: u32, member: Member) {
        if self.users.len() >= KEPT && !self.users.contains_key(&uid) {
            let oldest = self.users.iter().min_by_key(|(_, (_, until))| *until).map(|(uid, _)| *uid);
            oldest.and_then(|oldest| self.users.remove(&oldest));
        }
        self.users.insert(uid, member);
    }
}

/// A look-up; its end wakes the tasks that wait for it, or for their turn.
struct Running<'g> {
    groups: &'g Groups,
    uid: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut known = self.groups.known();
        known.running.retain(|uid| *uid != self.uid);
        let waiting = std::mem::take(&mut known.waiting);
        drop(known);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn run<T>(future: impl Future<Output = T>) -> T {
        runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(future)
    }

    #[test]
    fn a_user_is_looked_up_once_however_many_ask_at_once() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let lookup: GroupLookup = Arc::new(move |uid| {
            counted.fetch_add(1, Ordering::SeqCst);
            (uid != 7).then(|| vec![uid, uid + 1])
        });
        run(async {
            let groups = std::rc::Rc::new(Groups::default());
            let ask = |uid| {
                let (groups, lookup) = (groups.clone(), lookup.clone());
                runtime::spawn(async move { groups.of(uid, &lookup).await.0 })
            };
            let asked: Vec<_> = [5, 5, 6, 5, 7, 8, 9].map(ask).into_iter().collect();
            for (task, expected) in
                asked.into_iter().zip([Some(5), Some(5), Some(6), Some(5), None, Some(8), Some(9)])
            {
                let expected = expected.map(|uid| vec![uid, uid + 1]).unwrap_or_default();
                assert_eq!(task.await.ok().unwrap()[..], expected[..]);
            }
        });
        assert_eq!(calls.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn as_many_users_are_kept_as_there_is_room_for_the_oldest_goes_first() {
        let mut known = Known::default();
        let begun = Instant::now();
        for uid in 0..KEPT as u32 + 3 {
            known.keep(uid, (Arc::from([]), begun + Duration::from_secs(uid.into())));
        }
        assert_eq!(known.users.len(), KEPT);
        assert!(!known.users.contains_key(&2) && known.users.contains_key(&3));
    }
}
