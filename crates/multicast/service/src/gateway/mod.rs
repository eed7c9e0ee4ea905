//! The gateway: the venue's own receiver beside participants, who hold no key and run none of our
//! code.
//!
//! Who holds the key of a run can open a message before its deadline, and can write in the name of
//! others. Participants therefore get no key. A gateway joins the run as a receiver, holds each
//! message until its deadline, and then hands it on by UDP, in the clear:
//!
//! ```text
//!                                      release                      +--> participant 2
//!  root --> proxies --> gateway: hold -----+--> MoldUDP64 or plain --+--> participant 3
//!                                          |    (turning order)     +--> participant 1
//!                                          +--> ring <-- requests of participants
//! ```
//!
//! A release is handed on in the thread that released it, by one call for all participants, and
//! the participant that was served first is served last the next time. Requests for messages again
//! are answered by a thread of their own ([`requests`]), so that no flood of requests delays a
//! release. Only messages that were released are kept for requests: nobody reads early.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | the table `[gateway]`, and the keys of a `[[node]]` with this role |
//! | [`handoff`] | what is sent to participants, and when it had left |
//! | [`requests`] | the re-request server |
//! | [`role`] | a gateway as a process |
//! | [`service`] | gateways as a service |

pub mod handoff;
pub mod requests;
pub mod role;
pub mod service;
pub mod settings;
