//! Several kinds of machines in one world.

/// Makes an enum of machines a [`Machine`], because a world or a loop drives machines of one type.
/// Every method calls the same method of the machine inside.
///
/// Each arm has the form of an arm of [`Machine::poll_event`]: a variant whose first field is the
/// machine, and an expression for the next event of that machine. Further fields of a variant are
/// there for this expression.
///
/// [`Machine`]: evenfall_core::Machine
/// [`Machine::poll_event`]: evenfall_core::Machine::poll_event
///
/// ```
/// use evenfall_core::{Machine, Timestamp};
/// use evenfall_sim::any_machine;
///
/// # use evenfall_core::{Arrival, ClockReading, Malformed, Transmit};
/// /// Tells at which time it was woken.
/// #[derive(Default)]
/// struct Alarm(Option<Timestamp>);
/// # impl Machine for Alarm {
/// #     type Event = Timestamp;
/// #     fn handle(&mut self, _: Timestamp, _: Arrival) -> Result<(), Malformed> {
/// #         Ok(())
/// #     }
/// #     fn handle_timeout(&mut self, now: Timestamp) {
/// #         self.0 = Some(now);
/// #     }
/// #     fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}
/// #     fn poll_event(&mut self) -> Option<Timestamp> {
/// #         self.0.take()
/// #     }
/// #     fn poll_transmit(&mut self, _: Timestamp) -> Option<Transmit> {
/// #         None
/// #     }
/// #     fn poll_timeout(&self) -> Option<Timestamp> {
/// #         None
/// #     }
/// # }
///
/// enum Node {
///     Plain(Box<Alarm>),
///     Named(Alarm, &'static str),
/// }
///
/// any_machine! {
///     impl Machine for Node {
///         type Event = (&'static str, Timestamp);
///
///         Plain(alarm) => alarm.poll_event().map(|at| ("nobody", at)),
///         Named(alarm, name) => alarm.poll_event().map(|at| (*name, at)),
///     }
/// }
///
/// let mut nodes = [Node::Plain(Box::default()), Node::Named(Alarm::default(), "ann")];
/// let now = Timestamp::from_nanos(1);
/// nodes.iter_mut().for_each(|node| node.handle_timeout(now));
/// let events = nodes.map(|mut node| node.poll_event());
/// assert_eq!(events, [Some(("nobody", now)), Some(("ann", now))]);
/// ```
#[macro_export]
macro_rules! any_machine {
    (impl $(<$($parameter:ident: $bound:path),+>)? Machine for $any:ty {
        type Event = $event:ty;
        $($kind:ident($machine:ident $(, $field:ident)*) => $next:expr,)+
    }) => {
        impl $(<$($parameter: $bound),+>)? ::evenfall_core::Machine for $any {
            type Event = $event;

            #[inline]
            fn handle(
                &mut self,
                now: ::evenfall_core::Timestamp,
                arrival: ::evenfall_core::Arrival,
            ) -> Result<(), ::evenfall_core::Malformed> {
                match self { $(Self::$kind($machine, ..) => $machine.handle(now, arrival),)+ }
            }

            #[inline]
            fn handle_timeout(&mut self, now: ::evenfall_core::Timestamp) {
                match self { $(Self::$kind($machine, ..) => $machine.handle_timeout(now),)+ }
            }

            #[inline]
            fn handle_clock(
                &mut self,
                now: ::evenfall_core::Timestamp,
                reading: ::evenfall_core::ClockReading,
            ) {
                match self { $(Self::$kind($machine, ..) => $machine.handle_clock(now, reading),)+ }
            }

            #[inline]
            fn handle_sent(
                &mut self,
                now: ::evenfall_core::Timestamp,
                sent: ::evenfall_core::Sent,
            ) {
                match self { $(Self::$kind($machine, ..) => $machine.handle_sent(now, sent),)+ }
            }

            #[inline]
            fn handle_counters(
                &mut self,
                now: ::evenfall_core::Timestamp,
                of: ::evenfall_core::ForwardId,
                counters: ::evenfall_core::ForwardCounters,
            ) {
                match self {
                    $(Self::$kind($machine, ..) => $machine.handle_counters(now, of, counters),)+
                }
            }

            #[inline]
            fn poll_event(&mut self) -> Option<$event> {
                match self { $(Self::$kind($machine $(, $field)*) => $next,)+ }
            }

            #[inline]
            fn poll_install(&mut self) -> Option<::evenfall_core::Install> {
                match self { $(Self::$kind($machine, ..) => $machine.poll_install(),)+ }
            }

            #[inline]
            fn poll_transmit(
                &mut self,
                now: ::evenfall_core::Timestamp,
            ) -> Option<::evenfall_core::Transmit> {
                match self { $(Self::$kind($machine, ..) => $machine.poll_transmit(now),)+ }
            }

            #[inline]
            fn poll_urgent(
                &mut self,
                now: ::evenfall_core::Timestamp,
            ) -> Option<::evenfall_core::Transmit> {
                match self { $(Self::$kind($machine, ..) => $machine.poll_urgent(now),)+ }
            }

            #[inline]
            fn poll_timeout(&self) -> Option<::evenfall_core::Timestamp> {
                match self { $(Self::$kind($machine, ..) => $machine.poll_timeout(),)+ }
            }

            #[inline]
            fn poll_lull(&self) -> Option<::evenfall_core::Timestamp> {
                match self { $(Self::$kind($machine, ..) => $machine.poll_lull(),)+ }
            }

            #[inline]
            fn clock(&self) -> Option<::evenfall_core::Clock> {
                match self { $(Self::$kind($machine, ..) => $machine.clock(),)+ }
            }

            #[inline]
            fn durable(&mut self) -> Option<&mut dyn ::evenfall_core::Durable> {
                match self { $(Self::$kind($machine, ..) => $machine.durable(),)+ }
            }
        }
    };
}
