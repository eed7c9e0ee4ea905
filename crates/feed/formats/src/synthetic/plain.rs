//! Messages that change no book: the morning's, and those between trades.

use super::book::UNITS_PER_CENT;
use super::{Generator, MESSAGES_PER_SYMBOL, OPENING};
use crate::itch::{self, Alpha, Code, ItchKind, Mpid, Owned, Price4, Price8, Stock};

impl Generator {
    /// The messages of the morning: O, decline levels, three per symbol, S, Q.
    pub(super) fn opening(&self, index: u64, timestamp_ns: u64) -> Owned {
        let behind = self.opening_messages() - 2;
        match index {
            0 => return system_event(timestamp_ns, OPENING[0]),
            1 => {
                // 7, 13 and 20 % below an index of 3,000.
                let [level_1, level_2, level_3] =
                    [2_790, 2_610, 2_400].map(|points| Price8(points * 100_000_000));
                let levels = itch::MwcbDeclineLevel {
                    timestamp_ns,
                    level_1,
                    level_2,
                    level_3,
                    ..Default::default()
                };
                return Owned::MwcbDeclineLevel(levels);
            }
            _ if index >= behind => {
                return system_event(timestamp_ns, OPENING[1 + (index - behind) as usize]);
            }
            _ => {}
        }
        let place = index - 2;
        let stock_locate = (place / MESSAGES_PER_SYMBOL) as u16 + 1;
        let stock = Self::symbol(stock_locate);
        match place % MESSAGES_PER_SYMBOL {
            0 => Owned::StockDirectory(directory_entry(timestamp_ns, stock_locate, stock)),
            1 => Owned::StockTradingAction(itch::StockTradingAction {
                stock_locate,
                timestamp_ns,
                stock,
                trading_state: Code(b'T'),
                reserved: Code(b' '),
                ..Default::default()
            }),
            _ => Owned::RegShoRestriction(itch::RegShoRestriction {
                stock_locate,
                timestamp_ns,
                stock,
                action: Code(b'0'),
                ..Default::default()
            }),
        }
    }

    pub(super) fn participant(&mut self) -> Mpid {
        const PARTICIPANTS: [[u8; 4]; 4] = [*b"EVEN", *b"FALL", *b"MMKR", *b"NITE"];
        Alpha(PARTICIPANTS[self.prng.below(4) as usize])
    }

    /// Messages that change no book.
    pub(super) fn other(&mut self, kind: ItchKind, timestamp_ns: u64, stock_locate: u16) -> Owned {
        let stock = Self::symbol(stock_locate);
        let middle_cents = self.books[usize::from(stock_locate)].middle_cents();
        let price = Price4(middle_cents * UNITS_PER_CENT);
        let lots = 1 + self.prng.below(20);
        match kind {
            ItchKind::Trade | ItchKind::CrossTrade | ItchKind::BrokenTrade => {
                self.matched(kind, timestamp_ns, stock_locate, price)
            }
            ItchKind::Noii => Owned::Noii(itch::Noii {
                stock_locate,
                timestamp_ns,
                stock,
                paired_shares: lots * 500,
                imbalance_shares: lots * 100,
                imbalance_direction: Code(b'B'),
                far_price: price,
                near_price: price,
                reference_price: price,
                cross_type: Code(b'O'),
                price_variation: Code(b'L'),
                ..Default::default()
            }),
            ItchKind::MarketParticipantPosition => {
                Owned::MarketParticipantPosition(itch::MarketParticipantPosition {
                    stock_locate,
                    timestamp_ns,
                    stock,
                    mpid: self.participant(),
                    primary_market_maker: Code(b'Y'),
                    market_maker_mode: Code(b'N'),
                    participant_state: Code(b'A'),
                    ..Default::default()
                })
            }
            ItchKind::LuldAuctionCollar => Owned::LuldAuctionCollar(itch::LuldAuctionCollar {
                stock_locate,
                timestamp_ns,
                stock,
                reference_price: price,
                upper_price: Price4(price.0 / 20 * 21),
                lower_price: Price4(price.0 / 20 * 19),
                ..Default::default()
            }),
            // The last of the mix; resumed, so that the trade that goes on is allowed.
            _ => Owned::OperationalHalt(itch::OperationalHalt {
                stock_locate,
                timestamp_ns,
                stock,
                market_code: Code(b'Q'),
                halt_action: Code(b'T'),
                ..Default::default()
            }),
        }
    }

    /// Matches outside the book, and matches made void.
    fn matched(
        &mut self,
        kind: ItchKind,
        timestamp_ns: u64,
        stock_locate: u16,
        price: Price4,
    ) -> Owned {
        if kind == ItchKind::BrokenTrade {
            let match_number = 1 + self.prng.below(self.last_match);
            return Owned::BrokenTrade(itch::BrokenTrade {
                stock_locate,
                timestamp_ns,
                match_number,
                ..Default::default()
            });
        }
        self.last_match += 1;
        let (match_number, stock) = (self.last_match, Self::symbol(stock_locate));
        let shares = 100 * (1 + self.prng.below(20) as u32);
        if kind == ItchKind::CrossTrade {
            return Owned::CrossTrade(itch::CrossTrade {
                stock_locate,
                timestamp_ns,
                stock,
                match_number,
                cross_price: price,
                shares: u64::from(shares) * 10,
                cross_type: Code(b'H'),
                ..Default::default()
            });
        }
        Owned::Trade(itch::Trade {
            stock_locate,
            timestamp_ns,
            stock,
            price,
            match_number,
            shares,
            side: Code(b'B'),
            ..Default::default()
        })
    }
}

pub(super) fn system_event(timestamp_ns: u64, code: u8) -> Owned {
    let event_code = Code(code);
    Owned::SystemEvent(itch::SystemEvent { timestamp_ns, event_code, ..Default::default() })
}

fn directory_entry(timestamp_ns: u64, stock_locate: u16, stock: Stock) -> itch::StockDirectory {
    itch::StockDirectory {
        stock_locate,
        timestamp_ns,
        stock,
        market_category: Code(b'Q'),
        financial_status: Code(b'N'),
        round_lot_size: 100,
        round_lots_only: Code(b'N'),
        issue_classification: Code(b'C'),
        issue_sub_type: Alpha(*b"Z "),
        // A test security, so that nobody takes the feed for a real feed.
        authenticity: Code(b'T'),
        short_sale_threshold: Code(b'N'),
        ipo_flag: Code(b'N'),
        luld_reference_price_tier: Code(b'1'),
        etp_flag: Code(b'N'),
        inverse_indicator: Code(b'N'),
        ..Default::default()
    }
}
