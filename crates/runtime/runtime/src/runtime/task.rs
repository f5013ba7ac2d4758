//! Tasks: futures that a runtime drives to their end, and the handles by which others wait for
//! them.
//!
//! A task lives in a recycled slot of memory with two owners: the runtime's task table until it has
//! ended, and its [`JoinHandle`]. Both belong to one thread, so the counts are plain.

use std::alloc::Layout;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Core;
use super::waker::{MAX_TASKS, TaskName};
use crate::pooled::{put_slot, take_slot};

/// Reason why a task has no output.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It was aborted, or its runtime has gone.
    #[error("the task was aborted")]
    Aborted,
    /// It panicked with this.
    #[error("the task panicked")]
    Panicked(Box<dyn Any + Send>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The future exists, and is not being polled.
    Idle,
    /// The future is being polled.
    Polled,
    /// The future is being polled, and is to be dropped afterwards.
    Aborting,
    /// The output exists, or has been taken.
    Ended,
}

/// Common beginning of every task.
pub(super) struct Head {
    vtable: &'static VTable,
    owners: Cell<u8>,
    phase: Cell<Phase>,
    name: Cell<TaskName>,
    /// Waker of the task that waits for the end.
    waiter: Cell<Option<Waker>>,
}

struct VTable {
    /// Polls the future; returns whether it ended.
    poll: unsafe fn(NonNull<Head>, &mut Context<'_>) -> bool,
    /// Replaces the future by [`JoinError::Aborted`].
    abort: unsafe fn(NonNull<Head>),
    /// Moves the output to a `*mut Option<Result<T, JoinError>>`.
    take: unsafe fn(NonNull<Head>, *mut ()),
    /// Drops whatever is left and frees the memory.
    free: unsafe fn(NonNull<Head>),
}

enum Stage<F: Future> {
    Future(F),
    Output(Result<F::Output, JoinError>),
    Empty,
}

#[repr(C)]
struct Task<F: Future> {
    head: Head,
    stage: UnsafeCell<Stage<F>>,
}

impl<F: Future + 'static> Task<F> {
    const VTABLE: VTable =
        VTable { poll: Self::poll, abort: Self::abort, take: Self::take, free: Self::free };

    /// A task with two owners.
    fn create(future: F, name: TaskName) -> NonNull<Head> {
        let slot = take_slot(Layout::new::<Self>()).cast::<Self>();
        let head = Head {
            vtable: &const { Self::VTABLE },
            owners: Cell::new(2),
            phase: Cell::new(Phase::Idle),
            name: Cell::new(name),
            waiter: Cell::new(None),
        };
        // SAFETY: the slot is large and aligned enough for the task, and has no other owner.
        unsafe { slot.as_ptr().write(Self { head, stage: UnsafeCell::new(Stage::Future(future)) }) };
        slot.cast()
    }

    /// # Safety
    /// `this` is a live `Task<F>`, and its stage is not borrowed otherwise until the result is no
    /// longer used.
    unsafe fn stage<'a>(this: NonNull<Head>) -> &'a mut Stage<F> {
        // SAFETY: the caller's; `Head` is the first field of the `repr(C)` task that `this` was
        // made as.
        unsafe { &mut *this.cast::<Self>().as_ref().stage.get() }
    }

    /// # Safety
    /// `this` is a live `Task<F>` whose phase is `Polled`, set by the caller, so that no other code
    /// touches the stage.
    unsafe fn poll(this: NonNull<Head>, cx: &mut Context<'_>) -> bool {
        // SAFETY: the caller's.
        let stage = unsafe { Self::stage(this) };
        let Stage::Future(future) = stage else { return true };
        // SAFETY: the future is pinned in its slot: it is only ever dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        let output = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => {
                tracing::error!("a task panicked");
                Err(JoinError::Panicked(panic))
            }
        };
        // SAFETY: the phase still keeps others away from the stage.
        unsafe { Self::finish(this, output) };
        true
    }

    /// # Safety
    /// As for [`Self::poll`].
    unsafe fn abort(this: NonNull<Head>) {
        // SAFETY: the caller's.
        unsafe { Self::finish(this, Err(JoinError::Aborted)) };
    }

    /// Drops the future in place and stores the output there.
    ///
    /// # Safety
    /// As for [`Self::poll`].
    unsafe fn finish(this: NonNull<Head>, output: Result<F::Output, JoinError>) {
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller's. Assigning drops the future where it is.
            unsafe { *Self::stage(this) = Stage::Empty };
        }));
        let output = match dropped {
            Ok(()) => output,
            Err(panic) => Err(JoinError::Panicked(panic)),
        };
        // SAFETY: the caller's.
        unsafe { *Self::stage(this) = Stage::Output(output) };
    }

    /// # Safety
    /// `this` is a live `Task<F>` in phase `Ended`, and `to` points to an `Option<Result<F::Output,
    /// JoinError>>`.
    unsafe fn take(this: NonNull<Head>, to: *mut ()) {
        // SAFETY: the caller's.
        unsafe {
            if let Stage::Output(output) = std::mem::replace(Self::stage(this), Stage::Empty) {
                *to.cast::<Option<Result<F::Output, JoinError>>>() = Some(output);
            }
        }
    }

    /// # Safety
    /// `this` is a live `Task<F>` without owners.
    unsafe fn free(this: NonNull<Head>) {
        let task = this.cast::<Self>();
        // SAFETY: the caller's; made by `create` with this layout.
        unsafe {
            task.drop_in_place();
            put_slot(task.cast(), Layout::new::<Self>());
        }
    }
}

/// Gives one ownership up.
///
/// # Safety
/// The caller is an owner of the live task and uses it no more.
unsafe fn disown(task: NonNull<Head>) {
    // SAFETY: alive, by the caller.
    let head = unsafe { task.as_ref() };
    head.owners.set(head.owners.get() - 1);
    if head.owners.get() == 0 {
        // SAFETY: it has no owner any more.
        unsafe { (head.vtable.free)(task) };
    }
}

struct Slot {
    generation: u32,
    /// Whether its name is in the run queue.
    queued: bool,
    task: Option<NonNull<Head>>,
}

/// The tasks of one runtime.
pub(super) struct Tasks {
    runtime: u16,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Tasks {
    /// A table whose first slot is reserved for the future of `block_on`.
    pub(super) fn new(runtime: u16) -> Self {
        Self { runtime, slots: vec![Slot { generation: 0, queued: false, task: None }], free: Vec::new() }
    }

    /// The name of `block_on`'s future.
    pub(super) fn main(&self) -> TaskName {
        TaskName::new(self.runtime, 0, 0)
    }

    fn insert<F: Future + 'static>(&mut self, future: F) -> (TaskName, NonNull<Head>) {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < MAX_TASKS, "too many tasks");
            self.slots.push(Slot { generation: 0, queued: false, task: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        let name = TaskName::new(self.runtime, index, slot.generation);
        let task = Task::create(future, name);
        slot.task = Some(task);
        (name, task)
    }

    fn get(&mut self, name: TaskName) -> Option<&mut Slot> {
        let runtime = self.runtime;
        let slot = self.slots.get_mut(name.index())?;
        (TaskName::new(runtime, name.index() as u32, slot.generation) == name).then_some(slot)
    }

    /// Whether the task must be put into the run queue now.
    #[inline]
    pub(super) fn mark_queued(&mut self, name: TaskName) -> bool {
        self.get(name).is_some_and(|slot| !std::mem::replace(&mut slot.queued, true))
    }

    /// The task to run for a name from the run queue.
    #[inline]
    pub(super) fn take_queued(&mut self, name: TaskName) -> Option<NonNull<Head>> {
        let slot = self.get(name)?;
        slot.queued = false;
        slot.task
    }

    /// Forgets a task that has ended; its ownership goes to the caller.
    fn remove(&mut self, name: TaskName) -> Option<NonNull<Head>> {
        let slot = self.get(name)?;
        let task = slot.task.take()?;
        slot.queued = false;
        slot.generation = (slot.generation + 1) & ((1 << 28) - 1);
        self.free.push(name.index() as u32);
        Some(task)
    }

    /// Any task that is left and can be aborted at once. A task whose poll ended by a panic that
    /// was not caught for the task cannot: its state is unknown.
    pub(super) fn any_idle(&self) -> Option<NonNull<Head>> {
        // SAFETY: the table owns its tasks.
        let idle = |task: &NonNull<Head>| unsafe { task.as_ref() }.phase.get() == Phase::Idle;
        self.slots.iter().filter_map(|slot| slot.task).find(idle)
    }
}

/// Polls a task once.
///
/// # Safety
/// `task` is in `core`'s table.
#[inline]
pub(super) unsafe fn run(core: &Core, task: NonNull<Head>, name: TaskName) {
    // SAFETY: the table owns it, and lets go only below or in `abort`, which does not touch a task
    // that is polled.
    let head = unsafe { task.as_ref() };
    if head.phase.get() != Phase::Idle {
        return;
    }
    head.phase.set(Phase::Polled);
    let waker = name.waker();
    // SAFETY: the phase was just set.
    let mut ended = unsafe { (head.vtable.poll)(task, &mut Context::from_waker(&waker)) };
    if !ended && head.phase.get() == Phase::Aborting {
        // SAFETY: as above.
        unsafe { (head.vtable.abort)(task) };
        ended = true;
    }
    if ended {
        // SAFETY: it has just ended.
        unsafe { end(core, task) };
    } else {
        head.phase.set(Phase::Idle);
    }
}

/// Aborts a task: at once, or after the poll that it is in.
///
/// # Safety
/// `task` is alive: in `core`'s table, or owned by a handle.
pub(super) unsafe fn abort(core: &Core, task: NonNull<Head>) {
    // SAFETY: the caller's.
    let head = unsafe { task.as_ref() };
    match head.phase.get() {
        Phase::Idle => {
            head.phase.set(Phase::Polled);
            // SAFETY: the phase was just set; a task that has not ended is in the table.
            unsafe {
                (head.vtable.abort)(task);
                end(core, task);
            }
        }
        Phase::Polled => head.phase.set(Phase::Aborting),
        Phase::Aborting | Phase::Ended => {}
    }
}

/// # Safety
/// `task` is in `core`'s table, its output is in place, and the caller uses it no more.
unsafe fn end(core: &Core, task: NonNull<Head>) {
    // SAFETY: the table still owns it.
    let head = unsafe { task.as_ref() };
    head.phase.set(Phase::Ended);
    let waiter = head.waiter.take();
    let removed = core.tasks.borrow_mut().remove(head.name.get());
    if removed.is_some() {
        // SAFETY: the table's ownership, which it has just given up.
        unsafe { disown(task) };
    }
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

/// Runs `future` as a task of this thread's runtime; it may end long after the caller. Dropping the
/// handle lets it run on alone. Panics outside of a runtime.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    let core = Core::current();
    let (name, task) = core.tasks.borrow_mut().insert(future);
    core.schedule(name);
    JoinHandle { core, task, _output: PhantomData }
}

/// Waits for a task to end. Dropping it does not end the task.
pub struct JoinHandle<T> {
    core: Rc<Core>,
    task: NonNull<Head>,
    _output: PhantomData<T>,
}

impl<T> JoinHandle<T> {
    /// Ends the task without an output: its future is dropped before this returns, unless the task
    /// itself calls it, in which case it is dropped when it next waits. No effect on a task that
    /// has ended.
    pub fn abort(&self) {
        // SAFETY: this handle is an owner.
        unsafe { abort(&self.core, self.task) };
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        // SAFETY: this handle is an owner.
        unsafe { self.task.as_ref() }.phase.get() == Phase::Ended
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: this handle is an owner.
        let head = unsafe { self.task.as_ref() };
        if head.phase.get() != Phase::Ended {
            head.waiter.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let mut output: Option<Self::Output> = None;
        // SAFETY: it has ended, and `T` is the output of the future that it was spawned with.
        unsafe { (head.vtable.take)(self.task, (&raw mut output).cast()) };
        Poll::Ready(output.expect("polled after it was ready"))
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // SAFETY: this handle's ownership, given up once.
        unsafe { disown(self.task) };
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinHandle")
    }
}
