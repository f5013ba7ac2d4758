//! Runs many jobs that add further jobs. A bounded number of jobs runs at a time. The newest begin
//! first, so that few jobs wait even in a large tree.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::Notify;

/// Jobs that wait, and the number that run.
pub struct Jobs<J> {
    waiting: RefCell<Vec<J>>,
    /// Waiting or running.
    open: Cell<usize>,
    /// Whether no more jobs are begun.
    stopped: Cell<bool>,
    changed: Notify,
}

impl<J: 'static> Jobs<J> {
    pub fn add(&self, job: J) {
        self.open.set(self.open.get() + 1);
        self.waiting.borrow_mut().push(job);
        self.changed.notify();
    }

    /// Begins no more jobs.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.changed.notify();
    }

    /// The next job; `None` once there will be none.
    async fn next(&self) -> Option<J> {
        let ready = || {
            if self.stopped.get() || self.open.get() == 0 {
                return Some(None);
            }
            self.waiting.borrow_mut().pop().map(Some)
        };
        self.changed.until(ready).await
    }

    fn ended(&self) {
        self.open.set(self.open.get().saturating_sub(1));
        if self.open.get() == 0 {
            self.changed.notify();
        }
    }
}

/// Runs `first` and the jobs that these add, `depth` at a time. Returns when all have ended; after
/// [`Jobs::stop`], when the running ones have ended.
pub async fn run<J, F>(first: Vec<J>, depth: u16, work: impl Fn(J, Rc<Jobs<J>>) -> F + 'static)
where
    J: 'static,
    F: Future<Output = ()> + 'static,
{
    let jobs = Rc::new(Jobs {
        open: Cell::new(first.len()),
        waiting: RefCell::new(first),
        stopped: Cell::new(false),
        changed: Notify::default(),
    });
    let work = Rc::new(work);
    let mut workers = Vec::new();
    for _ in 0..depth.max(1) {
        workers.push(runtime::spawn(worker(jobs.clone(), work.clone())));
    }
    for worker in workers {
        // A panic has been reported by its worker.
        let _ = worker.await;
    }
}

async fn worker<J, F>(jobs: Rc<Jobs<J>>, work: Rc<impl Fn(J, Rc<Jobs<J>>) -> F>)
where
    J: 'static,
    F: Future<Output = ()>,
{
    while let Some(job) = jobs.next().await {
        work(job, jobs.clone()).await;
        jobs.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jobs_and_those_that_they_make_are_done_a_few_at_a_time() {
        let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
        let (done, under_way, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counts = (done.clone(), under_way.clone(), most.clone());
        runtime.block_on(run(vec![3u32], 4, move |job, jobs: Rc<Jobs<u32>>| {
            let (done, under_way, most) = counts.clone();
            async move {
                under_way.set(under_way.get() + 1);
                most.set(most.get().max(under_way.get()));
                runtime::yield_now().await;
                (0..if job > 0 { 5 } else { 0 }).for_each(|_| jobs.add(job - 1));
                under_way.set(under_way.get() - 1);
                done.set(done.get() + 1);
            }
        }));
        assert_eq!(done.get(), 1 + 5 + 25 + 125);
        assert!((2..=4).contains(&most.get()), "{}", most.get());
    }

    #[test]
    fn none_is_begun_after_a_stop() {
        let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        runtime.block_on(run((0..100).collect(), 1, move |job: u32, jobs: Rc<Jobs<u32>>| {
            let count = count.clone();
            async move {
                count.set(count.get() + 1);
                if job == 97 {
                    jobs.stop();
                }
            }
        }));
        assert_eq!(done.get(), 3);
    }
}
