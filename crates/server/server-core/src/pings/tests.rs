use super::*;

const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of a peer for a step, and for the one that ends its grace.
const STEPS: Duration = Duration::from_millis(300);

/// A peer in simulated time.
struct Fake {
    heard: Cell<Instant>,
    pinged: Cell<Option<Instant>>,
    /// It answers pings, at once.
    lives: Cell<bool>,
    awaited: Cell<bool>,
    /// When it was pinged.
    pings: RefCell<Vec<Instant>>,
    given_up: Cell<Option<Instant>>,
}

impl Peer for Fake {
    fn due(&self) -> Option<Instant> {
        let due = self.pinged.get().map_or(self.heard.get() + INTERVAL, |sent| sent + TIMEOUT);
        self.given_up.get().is_none().then_some(due)
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    fn is_pinged(&self) -> bool {
        self.pinged.get().is_some()
    }

    fn is_awaited(&self) -> bool {
        self.awaited.get()
    }

    fn time_out(&self, now: Instant) {
        assert!(self.due().is_some_and(|due| due <= now), "it is not due");
        if self.pinged.get().is_some() {
            self.given_up.set(Some(now));
            return;
        }
        self.pings.borrow_mut().push(now);
        match self.lives.get() {
            true => self.heard.set(now),
            false => self.pinged.set(Some(now)),
        }
    }
}

/// A core in simulated time.
struct World {
    pings: RefCell<Pings>,
    begun: Instant,
    now: Instant,
    peers: Vec<Rc<Fake>>,
    steps: usize,
}

impl World {
    fn new() -> Self {
        let begun = Instant::now();
        Self { pings: RefCell::default(), begun, now: begun, peers: Vec::new(), steps: 0 }
    }

    /// A peer that logs in now.
    fn add(&mut self) -> Rc<Fake> {
        let peer = Rc::new(Fake {
            heard: Cell::new(self.now),
            pinged: Cell::new(None),
            lives: Cell::new(true),
            awaited: Cell::new(false),
            pings: RefCell::default(),
            given_up: Cell::new(None),
        });
        self.pings.borrow_mut().enter(ConnectionId(self.peers.len() as u64), peer.clone());
        self.peers.push(peer.clone());
        peer
    }

    /// Adds `count` peers that log in one after the other, within `time`.
    fn crowd(&mut self, count: u32, time: Duration) {
        let begun = self.now;
        for number in 0..count {
            self.run_until(begun + time * number / count);
            self.add();
        }
    }

    fn run_until(&mut self, end: Instant) {
        loop {
            let next = self.pings.borrow().next();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.steps += 1;
            step(&self.pings, self.now);
        }
        self.now = end;
    }

    fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Pings in each second since the beginning.
    fn per_second(&self) -> Vec<u32> {
        let mut seconds = vec![0; (self.now - self.begun).as_secs() as usize + 1];
        for peer in &self.peers {
            for at in &*peer.pings.borrow() {
                seconds[(*at - self.begun).as_secs() as usize] += 1;
            }
        }
        seconds
    }
}

#[test]
fn a_few_silent_peers_are_pinged_in_their_interval_and_few_steps() {
    let mut world = World::new();
    world.crowd(500, INTERVAL);
    world.run(100 * INTERVAL);
    for peer in &world.peers {
        let pings = peer.pings.borrow();
        assert!(pings.len() >= 98, "{} pings", pings.len());
        for pair in pings.windows(2) {
            let silence = pair[1] - pair[0];
            assert!((INTERVAL..=INTERVAL + STEPS).contains(&silence), "{silence:?}");
        }
    }
    let all: u32 = world.per_second().iter().sum();
    assert!(world.steps * 4 < all as usize, "{} steps for {all} pings", world.steps);
}

#[test]
fn one_silent_peer_costs_one_step_a_ping() {
    let mut world = World::new();
    let peer = world.add();
    world.run(100 * INTERVAL);
    assert_eq!((world.steps, peer.pings.borrow().len()), (100, 100));
}

#[test]
fn ten_thousand_silent_peers_take_turns_at_so_many_pings_a_second() {
    let mut world = World::new();
    world.crowd(10_000, Duration::from_secs(3));
    world.run(Duration::from_secs(500));
    let per_second = world.per_second();
    // As many steps may begin in a second as end in it, and one more.
    let most = per_second.iter().max().copied().unwrap_or(0);
    assert!(most <= PER_SECOND + PER_STEP as u32, "{most} pings in a second");
    let steady = per_second[20..per_second.len() - 1].iter().sum::<u32>();
    assert!(steady >= (per_second.len() as u32 - 21) * (PER_SECOND - 1), "{steady} pings");
    // No peer waits much longer than the others.
    let longest = Duration::from_secs(u64::from(10_000 / PER_SECOND)) + INTERVAL + STEPS;
    for peer in &world.peers {
        let mut before = peer.pings.borrow()[0] - INTERVAL;
        for at in &*peer.pings.borrow() {
            assert!(*at - before <= longest, "{:?} of silence", *at - before);
            before = *at;
        }
        assert!(world.now - before <= longest, "{:?} of silence", world.now - before);
    }
}

#[test]
fn a_dead_peer_among_ten_thousand_is_found_when_its_turn_comes() {
    let mut world = World::new();
    world.crowd(10_000, Duration::from_secs(3));
    world.run(Duration::from_secs(50));
    let dead = world.peers[7_777].clone();
    dead.lives.set(false);
    let from = world.now;
    world.run(Duration::from_secs(300));
    let turn = Duration::from_secs(u64::from(10_000 / PER_SECOND)) + INTERVAL;
    let found = dead.given_up.get().expect("it is found") - from;
    assert!(found <= turn + TIMEOUT + STEPS, "{found:?}");
    assert!(world.peers.iter().filter(|peer| peer.given_up.get().is_some()).count() == 1);
}

#[test]
fn a_dead_peer_that_something_waits_for_is_found_in_time_among_ten_thousand() {
    let mut world = World::new();
    world.crowd(10_000, Duration::from_secs(3));
    // By then most pings wait for their turn, and so may those of these peers.
    world.run(Duration::from_secs(47));
    for number in (0..10_000).step_by(501) {
        let peer = world.peers[number].clone();
        // Its command comes, and then nothing any more.
        peer.heard.set(world.now);
        peer.awaited.set(true);
        peer.lives.set(false);
        let from = world.now;
        world.run(INTERVAL + TIMEOUT + STEPS);
        let found = peer.given_up.get().expect("it is found") - from;
        assert!(found >= INTERVAL + TIMEOUT && found <= INTERVAL + TIMEOUT + STEPS, "{found:?}");
    }
}

#[test]
fn a_peer_that_begins_to_be_awaited_without_a_word_is_pinged_within_its_interval() {
    let mut world = World::new();
    world.crowd(10_000, Duration::from_secs(3));
    world.run(Duration::from_secs(20));
    for number in (0..10_000).step_by(997) {
        let peer = world.peers[number].clone();
        let before = peer.pings.borrow().len();
        // Something is sent to it, say, and it does not take it.
        peer.awaited.set(true);
        world.run(INTERVAL + STEPS);
        assert!(peer.pings.borrow().len() > before, "peer {number} was not asked");
    }
}

#[test]
fn who_is_heard_is_not_pinged() {
    let mut world = World::new();
    let busy = world.add();
    let silent = world.add();
    for _ in 0..1_000 {
        world.run(Duration::from_secs(1));
        busy.heard.set(world.now);
    }
    assert_eq!(busy.pings.borrow().len(), 0);
    assert!(silent.pings.borrow().len() >= 98);
    assert!(world.steps <= 2 * 120, "{} steps", world.steps);
}

#[test]
fn who_answers_while_this_side_stood_still_is_not_given_up() {
    let mut world = World::new();
    let (slow, dead) = (world.add(), world.add());
    slow.lives.set(false);
    dead.lives.set(false);
    world.run(INTERVAL + STEPS);
    assert!(slow.is_pinged() && dead.is_pinged());
    // A minute passes in which nothing runs here.
    world.now += Duration::from_secs(60);
    step(&world.pings, world.now);
    world.run(LONGEST_LISTEN / 2);
    assert_eq!((slow.given_up.get(), dead.given_up.get()), (None, None));
    slow.pinged.set(None);
    slow.heard.set(world.now);
    slow.lives.set(true);
    world.run(LONGEST_LISTEN);
    assert!(slow.given_up.get().is_none() && dead.given_up.get().is_some());
    // A later ping does not drop it at once either.
    world.run(INTERVAL);
    slow.lives.set(false);
    world.run(2 * INTERVAL);
    let found = slow.given_up.get().expect("it is found");
    let asked = *slow.pings.borrow().last().expect("it was asked");
    assert!(found >= asked + TIMEOUT + LAST_LISTEN);
}

#[test]
fn who_leaves_is_forgotten_whatever_it_waited_for() {
    let mut world = World::new();
    world.crowd(2_000, Duration::from_secs(1));
    world.peers[3].lives.set(false);
    world.run(INTERVAL + Duration::from_secs(2));
    assert!(!world.pings.borrow().waiting.is_empty() && world.peers[3].is_pinged());
    for number in 0..2_000 {
        assert!(world.pings.borrow_mut().leave(ConnectionId(number)).is_some());
    }
    let pings = world.pings.borrow();
    assert!(pings.entries.is_empty() && pings.looks.is_empty() && pings.waiting.is_empty());
    assert_eq!(pings.next(), None);
}
