//! Clients of the control socket. One user cannot keep others out: each user has a bounded number
//! of places. If all are taken, the client that has been idle longest is disconnected.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Uid;
use rustix::net::{Shutdown, shutdown};

/// Clients of one user at once.
pub const PER_USER: usize = 16;
/// Clients of all users but root and the daemon's own at once.
pub const OF_OTHERS: usize = 32;

#[derive(Default)]
pub struct Clients {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    /// Longest idle first.
    all: Vec<Entry>,
}

struct Entry {
    id: u64,
    user: Uid,
    stream: Arc<UnixStream>,
    busy: bool,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client of `user`; `None` if all that it may have are at work.
    pub fn enter(self: &Arc<Self>, user: Uid, stream: Arc<UnixStream>) -> Option<Client> {
        let mut entries = self.lock();
        let trusted = |user: Uid| user.is_root() || user == rustix::process::geteuid();
        let same = |entry: &Entry| entry.user == user;
        let other = |entry: &Entry| !trusted(entry.user);
        let full = entries.all.iter().filter(|entry| same(entry)).count() >= PER_USER;
        let crowded = !trusted(user) && entries.all.iter().filter(|entry| other(entry)).count() >= OF_OTHERS;
        if full || crowded {
            let idle = |entry: &Entry| !entry.busy && if full { same(entry) } else { other(entry) };
            let at = entries.all.iter().position(idle)?;
            let left = entries.all.remove(at);
            // Its thread then reads the end of the stream.
            let _ = shutdown(&*left.stream, Shutdown::Both);
        }
        let id = entries.next;
        entries.next += 1;
        entries.all.push(Entry { id, user, stream, busy: false });
        Some(Client { clients: self.clone(), id })
    }
}

/// A client's place. Given back when it is dropped.
pub struct Client {
    clients: Arc<Clients>,
    id: u64,
}

impl Client {
    /// Records that it executes a request, or waits for the next one.
    pub fn set_busy(&self, busy: bool) {
        let mut entries = self.clients.lock();
        let Some(at) = entries.all.iter().position(|entry| entry.id == self.id) else { return };
        let mut entry = entries.all.remove(at);
        entry.busy = busy;
        entries.all.push(entry);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.clients.lock().all.retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn client(clients: &Arc<Clients>, user: u32) -> (Option<Client>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (clients.enter(Uid::from_raw(user), Arc::new(ours)), theirs)
    }

    #[test]
    fn a_user_who_takes_all_places_only_pushes_out_clients_of_its_own() {
        let clients = Arc::new(Clients::default());
        let mut all: Vec<_> = (0..PER_USER).map(|_| client(&clients, 4711)).collect();
        let root = client(&clients, 0);
        assert!(root.0.is_some());
        // The first is busy, so the second has been idle longest.
        all[0].0.as_ref().unwrap().set_busy(true);
        let next = client(&clients, 4711);
        assert!(next.0.is_some());
        all[1].1.set_nonblocking(true).unwrap();
        assert_eq!(all[1].1.read(&mut [0]).unwrap(), 0, "it was ended");
        all[0].1.set_nonblocking(true).unwrap();
        assert!(all[0].1.read(&mut [0]).is_err(), "it goes on");
        for (client, _) in &all {
            client.as_ref().unwrap().set_busy(true);
        }
        next.0.as_ref().unwrap().set_busy(true);
        assert!(client(&clients, 4711).0.is_none(), "all are at work");
        assert!(client(&clients, 0).0.is_some());
        drop(all);
        assert!(client(&clients, 4711).0.is_some());
    }

    #[test]
    fn many_users_together_leave_room_for_root() {
        let clients = Arc::new(Clients::default());
        let all: Vec<_> = (0..OF_OTHERS as u32).map(|user| client(&clients, 10_000 + user)).collect();
        all.iter().for_each(|(client, _)| client.as_ref().unwrap().set_busy(true));
        assert!(client(&clients, 9).0.is_none());
        assert!(client(&clients, 0).0.is_some());
    }
}
