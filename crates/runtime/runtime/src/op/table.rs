//! The table of operations: those in flight, their results, and the data that they own after their
//! future has gone.
//!
//! A slot is named by its index and a generation, together the entry's user data; a completion that
//! names an old generation belongs to no operation. Slots are used again, so a warm data path does
//! not allocate.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::Completion;
use crate::pooled::{put_slot, take_slot};

/// Identifies a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn from_user_data(user_data: u64) -> Self {
        Self { index: user_data as u32, generation: (user_data >> 32) as u32 }
    }
}

/// Data of an abandoned operation, its type forgotten.
pub(super) struct Orphan {
    data: NonNull<u8>,
    layout: Layout,
    drop: unsafe fn(NonNull<u8>),
}

impl Orphan {
    pub(super) fn new<T: 'static>(data: T) -> Self {
        /// # Safety
        /// A `T` lives there, and is not used afterwards.
        unsafe fn drop_as<T>(data: NonNull<u8>) {
            // SAFETY: the caller's.
            unsafe { data.cast::<T>().drop_in_place() };
        }
        let layout = Layout::new::<T>();
        let slot = take_slot(layout);
        // SAFETY: the slot is large and aligned enough for `T`, and has no other owner.
        unsafe { slot.cast::<T>().write(data) };
        Self { data: slot, layout, drop: drop_as::<T> }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this type and layout; the slot goes back once, after its
        // content.
        unsafe {
            (self.drop)(self.data);
            put_slot(self.data, self.layout);
        }
    }
}

enum State {
    Free {
        next: u32,
    },
    /// In flight; its future exists.
    Pending,
    /// Ended, and its future has not taken the result yet.
    Done(Completion),
    /// In flight, with any number of completions.
    Multi {
        ended: bool,
    },
    /// In flight; the data that it owns is kept until it ends.
    Abandoned(#[expect(dead_code, reason = "kept only to be dropped")] Orphan),
    /// In flight, with any number of completions that are thrown away.
    AbandonedMulti(fn(Completion)),
}

struct Slot {
    generation: u32,
    state: State,
    /// The entry's number in the submission queue.
    number: u64,
    waker: Option<Waker>,
    /// Completions of a multi-shot operation that were not taken yet.
    completions: VecDeque<Completion>,
}

/// Action of the loop on a completion.
pub(crate) enum Completed {
    /// Wake this task.
    Wake(Option<Waker>),
    /// It belonged to no operation: put back a buffer that the kernel chose.
    Unclaimed(Completion),
    /// Wake this task, and stop the operation: too many of its completions were not taken.
    Stop(Option<Waker>),
    /// Pass it to this function.
    Dispose(fn(Completion), Completion),
}

const NONE: u32 = u32::MAX;
/// Most completions of a multi-shot operation that may wait before it is stopped.
const MOST_WAITING: usize = 64;

/// All operations of one ring.
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: u32,
    in_flight: usize,
    /// The ring was closed while operations were in flight: the data that they own is never freed.
    leaked: bool,
    /// Data of ended operations, until [`Self::take_ended`]: dropping it may run any code, so not
    /// in here.
    ended: Vec<State>,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, in_flight: 0, leaked: false, ended: Vec::new() }
    }

    /// Operations whose last completion has not arrived.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn insert(&mut self, multi: bool) -> Key {
        let state = if multi { State::Multi { ended: false } } else { State::Pending };
        self.in_flight += 1;
        let index = self.free;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            if let State::Free { next } = slot.state {
                self.free = next;
            }
            slot.state = state;
            return Key { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len())
            .ok()
            .filter(|i| *i < NONE - 1)
            .expect("fewer than 2^32 operations");
        self.slots.push(Slot { generation: 0, state, number: 0, waker: None, completions: VecDeque::new() });
        Key { index, generation: 0 }
    }

    pub(super) fn set_number(&mut self, key: Key, number: u64) {
        if let Some(slot) = self.get(key) {
            slot.number = number;
        }
    }

    pub(super) fn number(&self, key: Key) -> Option<u64> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot.number)
    }

    #[inline]
    fn get(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)
    }

    fn free(&mut self, key: Key) -> State {
        let next = self.free;
        let slot = &mut self.slots[key.index as usize];
        // The topmost generations are the module's own user data.
        slot.generation = if slot.generation >= u32::MAX - 1 { 0 } else { slot.generation + 1 };
        slot.waker = None;
        slot.completions.clear();
        self.free = key.index;
        std::mem::replace(&mut slot.state, State::Free { next })
    }

    /// The completion of a single operation, once it has arrived; the slot is free then.
    #[inline]
    pub(super) fn poll(&mut self, key: Key, cx: &mut Context<'_>) -> Option<Completion> {
        let slot = self.get(key)?;
        if let State::Done(completion) = slot.state {
            self.free(key);
            return Some(completion);
        }
        set_waker(&mut slot.waker, cx);
        None
    }

    pub(super) fn poll_next(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let Some(slot) = self.get(key) else { return Poll::Ready(None) };
        if let Some(completion) = slot.completions.pop_front() {
            return Poll::Ready(Some(completion));
        }
        if let State::Multi { ended: true } = slot.state {
            self.free(key);
            return Poll::Ready(None);
        }
        set_waker(&mut slot.waker, cx);
        Poll::Pending
    }

    /// Gives a single operation up. If it has ended, its slot is free and its completion is
    /// returned; if not, the table keeps what `orphan` gives until it ends.
    pub(super) fn abandon(&mut self, key: Key, orphan: impl FnOnce() -> Orphan) -> Option<Completion> {
        if self.leaked {
            std::mem::forget(orphan());
            return None;
        }
        let slot = self.get(key)?;
        if let State::Done(completion) = slot.state {
            self.free(key);
            return Some(completion);
        }
        slot.waker = None;
        slot.state = State::Abandoned(orphan());
        None
    }

    /// Abandons a multi-shot operation. Returns whether it is still in flight, and the completions
    /// that were not taken.
    pub(super) fn abandon_multi(
        &mut self,
        key: Key,
        dispose: fn(Completion),
    ) -> (bool, VecDeque<Completion>) {
        let Some(slot) = self.get(key) else { return (false, VecDeque::new()) };
        let left = std::mem::take(&mut slot.completions);
        let ended = matches!(slot.state, State::Multi { ended: true });
        if ended {
            self.free(key);
        } else {
            slot.waker = None;
            slot.state = State::AbandonedMulti(dispose);
        }
        (!ended, left)
    }

    /// Records a completion.
    #[inline]
    pub(crate) fn complete(&mut self, user_data: u64, completion: Completion) -> Completed {
        let key = Key::from_user_data(user_data);
        let Some(slot) = self.get(key) else { return Completed::Unclaimed(completion) };
        let last = !completion.more();
        match &mut slot.state {
            State::Pending => {
                slot.state = State::Done(completion);
                let waker = slot.waker.take();
                self.in_flight -= 1;
                Completed::Wake(waker)
            }
            State::Multi { ended } => {
                *ended = last;
                slot.completions.push_back(completion);
                let waker = slot.waker.take();
                let stop = !last && slot.completions.len() == MOST_WAITING;
                self.in_flight -= usize::from(last);
                if stop { Completed::Stop(waker) } else { Completed::Wake(waker) }
            }
            State::Abandoned(_) => {
                if last {
                    let state = self.free(key);
                    self.ended.push(state);
                    self.in_flight -= 1;
                }
                Completed::Unclaimed(completion)
            }
            State::AbandonedMulti(dispose) => {
                let dispose = *dispose;
                if last {
                    self.free(key);
                    self.in_flight -= 1;
                }
                Completed::Dispose(dispose, completion)
            }
            State::Done(_) | State::Free { .. } => Completed::Unclaimed(completion),
        }
    }

    /// Data of ended operations; to be dropped while the table is not borrowed.
    #[inline]
    pub(crate) fn take_ended(&mut self) -> Option<impl Sized + use<>> {
        self.ended.pop()
    }

    /// Leaks the data of abandoned operations: the ring is going and the kernel may still use it.
    pub(crate) fn leak(&mut self) {
        self.leaked = true;
        for slot in &mut self.slots {
            if !matches!(slot.state, State::Done(_)) {
                std::mem::forget(std::mem::replace(&mut slot.state, State::Free { next: NONE }));
            }
        }
        std::mem::forget(std::mem::take(&mut self.ended));
    }
}

#[inline]
fn set_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *slot = Some(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    struct OnDrop(Rc<Cell<u32>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    const DONE: Completion = Completion { result: 5, flags: 0 };
    /// IORING_CQE_F_MORE.
    const MORE: Completion = Completion { result: 6, flags: 2 };

    #[test]
    fn a_completion_never_reaches_the_next_user_of_its_slot() {
        let mut table = Table::new();
        let old = table.insert(false);
        table.complete(old.user_data(), DONE);
        assert_eq!(table.poll(old, &mut cx()).unwrap().result, 5);
        let new = table.insert(false);
        assert_eq!((new.index, new.generation), (old.index, old.generation + 1));
        assert!(matches!(table.complete(old.user_data(), DONE), Completed::Unclaimed(_)));
        assert!(table.poll(new, &mut cx()).is_none());
        assert_eq!(table.in_flight(), 1);
    }

    #[test]
    fn what_an_abandoned_operation_owns_lives_until_its_last_completion() {
        let drops = Rc::new(Cell::new(0));
        let mut table = Table::new();
        let key = table.insert(false);
        assert!(table.abandon(key, || Orphan::new(OnDrop(drops.clone()))).is_none());
        assert!(matches!(table.complete(key.user_data(), MORE), Completed::Unclaimed(_)));
        assert!(table.take_ended().is_none());
        assert!(matches!(table.complete(key.user_data(), DONE), Completed::Unclaimed(_)));
        assert_eq!(drops.get(), 0, "dropped by the caller, outside of the table");
        drop(table.take_ended());
        assert_eq!((drops.get(), table.in_flight()), (1, 0));
    }

    #[test]
    fn a_leaked_table_frees_nothing_that_the_kernel_may_touch() {
        let drops = Rc::new(Cell::new(0));
        let mut table = Table::new();
        let (abandoned, held) = (table.insert(false), table.insert(false));
        table.abandon(abandoned, || Orphan::new(OnDrop(drops.clone())));
        table.leak();
        table.abandon(held, || Orphan::new(OnDrop(drops.clone())));
        drop(table);
        assert_eq!(drops.get(), 0);
    }

    #[test]
    fn multishot_completions_come_in_order_and_stop_with_their_receiver() {
        let mut table = Table::new();
        let key = table.insert(true);
        for i in 1..=MOST_WAITING {
            let completed = table.complete(key.user_data(), Completion { result: i as i32, ..MORE });
            assert_eq!(matches!(completed, Completed::Stop(_)), i == MOST_WAITING);
        }
        table.complete(key.user_data(), DONE);
        for i in 1..=MOST_WAITING {
            assert!(matches!(table.poll_next(key, &mut cx()), Poll::Ready(Some(c)) if c.result == i as i32));
        }
        assert!(matches!(table.poll_next(key, &mut cx()), Poll::Ready(Some(c)) if c.result == 5));
        assert!(matches!(table.poll_next(key, &mut cx()), Poll::Ready(None)));
        assert_eq!(table.in_flight(), 0);
    }

    #[test]
    fn an_abandoned_multi_shot_operation_throws_everything_away() {
        thread_local!(static SEEN: Cell<u32> = const { Cell::new(0) });
        let dispose: fn(Completion) = |_| SEEN.set(SEEN.get() + 1);
        let mut table = Table::new();
        let key = table.insert(true);
        table.complete(key.user_data(), MORE);
        let (running, left) = table.abandon_multi(key, dispose);
        assert!(running && left.len() == 1);
        for completion in [MORE, DONE] {
            match table.complete(key.user_data(), completion) {
                Completed::Dispose(dispose, completion) => dispose(completion),
                _ => panic!("not thrown away"),
            }
        }
        assert_eq!((SEEN.get(), table.in_flight()), (2, 0));
    }
}
