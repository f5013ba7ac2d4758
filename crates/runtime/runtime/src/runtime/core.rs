//! State of one thread's executor, and one turn of its loop.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};

use super::Config;
use super::remote::{Address, Message, Remote};
use super::spin::{Polled, Spin};
use super::stall::{Stalls, Watch};
use super::task::{self, Tasks};
use super::waker::TaskName;
use crate::buf::racy;
use crate::fs::{Call, Registered, Threads};
use crate::op::{Completed, Completion, Driver, IGNORED, Provided, RECV_BUFFER, Table, WOKEN};
use crate::time::{Timers, clock};

/// Most polls of tasks in a turn before it looks at the ring.
const POLLS_PER_TURN: usize = 256;
/// Turns without sleep after which a core cleans up: some milliseconds under load.
const TURNS_AWAKE: u32 = 1024;

/// Sixteen checks of the ring take far less; if they took longer, something else ran.
const INTERRUPTED_NS: u64 = 3_000;

/// Number of times that another thread has preempted this one.
fn preemptions() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is plain numbers, which the call writes and for which zeros are valid,
    // and outlives the call.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// One thread's executor.
pub(crate) struct Core {
    pub(crate) uring: Driver,
    pub(crate) table: RefCell<Table>,
    pub(crate) provided: RefCell<Provided>,
    pub(crate) timers: RefCell<Timers>,
    pub(super) tasks: RefCell<Tasks>,
    queue: RefCell<VecDeque<TaskName>>,
    remote: &'static Remote,
    address: Address,
    /// Calls for the core's threads, handed over once a turn.
    pub(crate) calls: RefCell<Vec<Call>>,
    threads: OnceCell<Threads>,
    /// The pool's memory that the ring knows.
    pub(crate) registered: RefCell<Registered>,
    mail: RefCell<Vec<Message>>,
    main_woken: Cell<bool>,
    /// Whether the poll of the mailbox's event is in the ring.
    event_armed: Cell<bool>,
    /// The time, once a task has asked for it in this turn.
    now: Cell<Option<Instant>>,
    /// Notices turns that take too long.
    watch: RefCell<Watch>,
    /// Whether to poll or to sleep; its clock begins with the core.
    spin: RefCell<Spin>,
    /// Whether the latest wait polled, since there was nothing to do.
    polled: Cell<bool>,
    begun: Instant,
    /// Value of `preemptions()` when it was last read.
    preemptions: Cell<i64>,
    /// Turns since the core last slept or cleaned up.
    turns: Cell<u32>,
}

thread_local! {
    /// The runtime that drives this thread right now.
    static CURRENT: Cell<Option<&'static Rc<Core>>> = const { Cell::new(None) };
}

/// Leaves the runtime when dropped.
pub(super) struct Entered<'a> {
    before: Option<&'static Rc<Core>>,
    _core: PhantomData<&'a Rc<Core>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
        racy::put_off(self.before.is_some());
    }
}

impl Core {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        let uring = Driver::new(config.entries, config.backend)?;
        // An eighth of the pool at most, however many sockets receive at once.
        let most = u16::try_from(config.pool_bytes / 8 / RECV_BUFFER).unwrap_or(u16::MAX);
        let provided = Provided::new(&uring, config.recv_buffers, most)?;
        let remote = Remote::open()?;
        uring.own(remote.number());
        Ok(Self {
            uring,
            table: RefCell::new(Table::new()),
            provided: RefCell::new(provided),
            timers: RefCell::default(),
            tasks: RefCell::new(Tasks::new(remote.number())),
            queue: RefCell::default(),
            remote,
            address: remote.address(),
            calls: RefCell::default(),
            threads: OnceCell::new(),
            registered: RefCell::default(),
            mail: RefCell::default(),
            main_woken: Cell::new(false),
            event_armed: Cell::new(false),
            now: Cell::new(None),
            watch: RefCell::default(),
            spin: RefCell::new(Spin::new(u64::from(config.spin_us) * 1000)),
            polled: Cell::new(false),
            begun: Instant::now(),
            preemptions: Cell::new(preemptions()),
            turns: Cell::new(0),
        })
    }

    /// Makes this the thread's runtime until the guard is dropped.
    pub(super) fn enter<'a>(self: &'a Rc<Self>) -> Entered<'a> {
        assert!(CURRENT.get().is_none(), "a runtime runs on this thread already");
        self.enter_nested()
    }

    /// Like [`Self::enter`], but a runtime that runs already is only set aside.
    fn enter_nested<'a>(self: &'a Rc<Self>) -> Entered<'a> {
        // SAFETY: the reference leaves the cell when the guard is dropped, which borrows the same
        // `Rc`. A guard that is leaked keeps that borrow only by name, hence guards are private and
        // live on the stack of `block_on` and `shut_down`.
        let before = CURRENT.replace(Some(unsafe { &*std::ptr::from_ref(self) }));
        racy::put_off(true);
        Entered { before, _core: PhantomData }
    }

    /// Runs `f` with this thread's runtime.
    #[inline]
    pub(crate) fn with_current<R>(f: impl FnOnce(Option<&Rc<Self>>) -> R) -> R {
        f(CURRENT.get())
    }

    /// This thread's runtime.
    #[inline]
    pub(crate) fn try_current() -> Option<Rc<Self>> {
        CURRENT.get().cloned()
    }

    /// This thread's runtime. Panics outside of one.
    #[inline]
    pub(crate) fn current() -> Rc<Self> {
        Self::try_current().expect("called outside of a ring runtime")
    }

    /// Address by which other threads reach this runtime.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// The runtime's number in the process.
    pub(super) fn number(&self) -> usize {
        usize::from(self.remote.number())
    }

    /// The thread begins to drive a future: it did something else since the last turn.
    pub(super) fn begin(&self) {
        self.watch.borrow_mut().forget();
    }

    /// Its turns that took too long.
    pub(super) fn stalls(&self) -> Stalls {
        self.watch.borrow().stalls()
    }

    /// Whether it had to wait for its latest work, and polled meanwhile.
    pub(crate) fn has_polled(&self) -> bool {
        self.polled.get()
    }

    /// Submits the queued entries, and returns whether there is nothing to do but the calling task.
    pub(super) fn is_alone(&self) -> bool {
        if self.has_ready() || !self.calls.borrow().is_empty() {
            return false;
        }
        self.uring.submit();
        !self.uring.has_work() && !self.remote.mailbox.has_mail() && self.uring.unsubmitted() == 0
    }

    /// Time of this turn.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.now.get().unwrap_or_else(|| {
            let now = clock();
            self.now.set(Some(now));
            now
        })
    }

    /// Puts a task of this thread into the run queue.
    #[inline]
    pub(super) fn schedule(&self, name: TaskName) {
        if name.index() == 0 {
            self.main_woken.set(true);
        } else if self.tasks.borrow_mut().mark_queued(name) {
            self.queue.borrow_mut().push_back(name);
        }
    }

    pub(super) fn main_waker(&self) -> Waker {
        self.tasks.borrow().main().waker()
    }

    pub(super) fn wake_main(&self) {
        self.main_woken.set(true);
    }

    pub(super) fn take_main_woken(&self) -> bool {
        self.main_woken.replace(false)
    }

    fn has_ready(&self) -> bool {
        self.main_woken.get() || !self.queue.borrow().is_empty()
    }

    /// One turn: run the ready tasks, then submit, wait if there is nothing else to do, and reap.
    pub(super) fn turn(&self) {
        self.run_tasks();
        if self.remote.mailbox.has_mail() {
            self.read_mail();
        }
        // Tasks and mail may have copied past the caches; from here on the core may wait.
        racy::settle();
        self.submit_calls();
        self.arm_event();
        if self.has_ready() {
            if self.uring.unsubmitted() > 0 || self.uring.has_work() {
                self.must_enter(0, None);
            }
        } else {
            self.wait();
        }
        self.now.set(None);
        self.reap();
        self.fire_timers();
        let turns = self.turns.get() + 1;
        self.turns.set(turns);
        if turns == TURNS_AWAKE {
            self.tidy_up();
        }
    }

    /// Under load, does the clean-up that the core otherwise does before it sleeps: releases values
    /// that are not used any more.
    #[cold]
    fn tidy_up(&self) {
        self.turns.set(0);
        crate::buf::pool::release_closed_regions();
        crate::uses::sweep_if_due();
    }

    fn run_tasks(&self) {
        for _ in 0..POLLS_PER_TURN {
            let Some(name) = self.queue.borrow_mut().pop_front() else { return };
            let task = self.tasks.borrow_mut().take_queued(name);
            if let Some(task) = task {
                // SAFETY: it is in the table.
                unsafe { task::run(self, task, name) };
            }
            if self.main_woken.get() {
                return;
            }
        }
    }

    #[cold]
    fn read_mail(&self) {
        let mut mail = std::mem::take(&mut *self.mail.borrow_mut());
        self.remote.mailbox.take(&mut mail);
        for message in mail.drain(..) {
            match message {
                Message::Wake(name) => self.schedule(name),
                Message::Run(job) => job(),
                Message::Complete { user_data, result } => {
                    self.complete(user_data, Completion { result, flags: 0 });
                }
            }
        }
        *self.mail.borrow_mut() = mail;
    }

    /// Passes the calls that tasks made to the core's threads.
    #[inline]
    fn submit_calls(&self) {
        let mut calls = self.calls.borrow_mut();
        if !calls.is_empty() {
            self.threads.get_or_init(|| Threads::new(self.address)).submit(&mut calls);
        }
    }

    /// Records the results of calls by other threads for this core's operations, and drops other
    /// mail.
    fn reap_calls(&self) {
        let mut mail = Vec::new();
        self.remote.mailbox.take(&mut mail);
        for message in mail {
            if let Message::Complete { user_data, result } = message {
                self.complete(user_data, Completion { result, flags: 0 });
            }
        }
    }

    /// Ensures that the ring notices a wake-up from another thread.
    fn arm_event(&self) {
        if self.event_armed.replace(true) {
            return;
        }
        let event = types::Fd(self.remote.event());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).multi(true).build().user_data(WOKEN);
        // SAFETY: the entry points to nothing.
        unsafe { self.uring.push(&entry) };
    }

    /// Wakes the sleepers whose time has come. Returns whether there were any.
    #[inline]
    fn fire_timers(&self) -> bool {
        if self.timers.borrow().is_empty() {
            return false;
        }
        let now = self.now();
        self.watch.borrow_mut().begin(now);
        let mut fired = false;
        loop {
            let waker = self.timers.borrow_mut().pop_due(now);
            match waker {
                Some(waker) => waker.wake(),
                None => return fired,
            }
            fired = true;
        }
    }

    /// Submits, and waits for the next completion, timer or message.
    fn wait(&self) {
        self.polled.set(false);
        if self.spin.borrow().is_off() || self.uring.polls() == 0 {
            return self.sleep();
        }
        let now = Instant::now();
        self.watch.borrow_mut().end(now);
        let mut begin = self.nanoseconds(now);
        let budget = self.spin.borrow_mut().budget_ns(begin);
        if budget == 0 {
            self.sleep();
            return self.spin.borrow_mut().slept(self.elapsed_ns() - begin);
        }
        if self.uring.unsubmitted() > 0 {
            self.must_enter(0, None);
            if self.uring.has_completions() {
                return;
            }
            begin = self.elapsed_ns();
        }
        self.polled.set(true);
        let (found, preempted) = self.poll(begin, budget);
        if !found {
            self.sleep();
        } else if !self.uring.has_completions() && self.uring.has_work() {
            self.must_enter(0, None);
        }
        let now = self.elapsed_ns();
        self.spin.borrow_mut().polled(Polled { found, wait_ns: now - begin, preempted }, now);
    }

    /// Polls for at most `budget` nanoseconds from `begin` on. Returns whether there is something
    /// to do, and whether another thread had the processor meanwhile.
    fn poll(&self, begin: u64, budget: u64) -> (bool, bool) {
        let (mut last, mut interrupted) = (begin, false);
        let found = 'found: loop {
            for _ in 0..self.uring.polls() {
                if self.uring.has_work() || self.remote.mailbox.has_mail() {
                    break 'found true;
                }
                std::hint::spin_loop();
            }
            let now = self.elapsed_ns();
            // An interrupt, or another thread.
            interrupted |= now - last > INTERRUPTED_NS;
            last = now;
            if now - begin >= budget {
                break false;
            }
        };
        if !interrupted {
            return (found, false);
        }
        let before = self.preemptions.replace(preemptions());
        (found, self.preemptions.get() != before)
    }

    /// Nanoseconds since the core began.
    #[inline]
    fn elapsed_ns(&self) -> u64 {
        self.nanoseconds(Instant::now())
    }

    /// Nanoseconds from the core's beginning until `now`.
    #[inline]
    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Submits, and sleeps until the next completion, timer or message.
    fn sleep(&self) {
        self.turns.set(0);
        crate::buf::pool::release_closed_regions();
        self.provided.borrow_mut().refill();
        if self.remote.mailbox.may_sleep() {
            let deadline = self.timers.borrow().next().into_iter().chain(crate::uses::sweep()).min();
            let now = clock();
            self.watch.borrow_mut().end(now);
            let timeout = deadline.map(|at| at.saturating_duration_since(now));
            self.must_enter(1, timeout);
        }
        self.remote.mailbox.awake();
    }

    fn must_enter(&self, want: u32, timeout: Option<Duration>) {
        if let Err(error) = self.uring.enter(want, timeout) {
            // The driver is this thread's alone and set up as the kernel wished: no error is left
            // that could pass.
            panic!("the core cannot wait: {error}");
        }
    }

    /// Records every completion that has arrived.
    fn reap(&self) {
        while let Some((user_data, completion)) = self.uring.next_completion() {
            self.complete(user_data, completion);
        }
    }

    /// Records one completion.
    #[inline]
    pub(crate) fn complete(&self, user_data: u64, completion: Completion) {
        if user_data == IGNORED {
            return;
        }
        if user_data == WOKEN {
            self.event_armed.set(completion.more());
            return;
        }
        let completed = self.table.borrow_mut().complete(user_data, completion);
        match completed {
            Completed::Wake(Some(waker)) => waker.wake(),
            Completed::Wake(None) => {}
            Completed::Stop(waker) => {
                let entry = opcode::AsyncCancel::new(user_data).build();
                // SAFETY: the entry points to nothing.
                unsafe { self.uring.push(&entry.user_data(IGNORED).flags(squeue::Flags::SKIP_SUCCESS)) };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Completed::Unclaimed(completion) => {
                if let Some(buffer) = completion.buffer() {
                    self.provided.borrow_mut().put_back(buffer);
                }
                loop {
                    let ended = self.table.borrow_mut().take_ended();
                    if ended.is_none() {
                        break;
                    }
                }
            }
            Completed::Dispose(dispose, completion) => dispose(completion),
        }
    }

    /// Drops all tasks, cancels all operations, and waits up to `patience` for the kernel to
    /// release the memory that they own. Memory not released by then is leaked.
    pub(super) fn shut_down(self: &Rc<Self>, patience: Duration) {
        let entered = self.enter_nested();
        loop {
            let task = self.tasks.borrow().any_idle();
            let Some(task) = task else { break };
            // SAFETY: it is in the table.
            unsafe { task::abort(self, task) };
        }
        self.queue.borrow_mut().clear();
        self.submit_calls();
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(IGNORED);
        // SAFETY: the entry points to nothing.
        unsafe { self.uring.push(&cancel) };
        let deadline = clock() + patience;
        loop {
            let in_flight = self.table.borrow().in_flight() > 0 || self.uring.unsubmitted() > 0;
            let now = clock();
            if !in_flight || now >= deadline {
                break;
            }
            // Threads do not wake the ring of a core that is being taken down.
            let step = if self.threads.get().is_some() { 1 } else { 100 };
            if self.uring.enter(1, Some((deadline - now).min(Duration::from_millis(step)))).is_err() {
                break;
            }
            self.reap();
            self.reap_calls();
        }
        if self.table.borrow().in_flight() > 0 {
            tracing::error!("operations did not end; their buffers are leaked");
            self.table.borrow_mut().leak();
            self.provided.borrow_mut().leak();
        }
        drop(entered);
        self.remote.close();
    }
}
