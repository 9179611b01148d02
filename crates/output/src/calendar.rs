// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which day and time (UTC) is it so many seconds after 1970 began, and the other way round?

const DAY_SECONDS: i64 = 86_400;
/// Eras of 400 years are of the same length; years begin in March here, so that the leap day is the last.
const ERA_DAYS: i64 = 146_097;
/// From March of the year 0 to 1970.
const BEFORE_1970: i64 = 719_468;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
}

impl Utc {
    pub fn of_seconds(since_1970: i64) -> Self {
        let of_day = since_1970.rem_euclid(DAY_SECONDS);
        let days = since_1970.div_euclid(DAY_SECONDS) + BEFORE_1970;
        let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        Self {
            year: year + era * 400 + i64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// None: there is no such month, day or time, or it is before 1970.
    pub fn seconds(&self) -> Option<i64> {
        let date = self.year >= 1970
            && self.year <= 9999
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day);
        let time = (0..24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..=60).contains(&self.second);
        if !date || !time {
            return None;
        }
        let year = self.year - i64::from(self.month <= 2);
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        let days = era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        let time = self.hour * 3_600 + self.minute * 60 + self.second;
        Some((days - BEFORE_1970) * DAY_SECONDS + time)
    }

    /// "2026-11-27"
    pub fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_come_one_after_the_other_and_lead_back() {
        let mut before = Utc::of_seconds(-DAY_SECONDS);
        assert_eq!(before.date(), "1969-12-31");
        for day in 0..400 * 366 {
            let at = day * DAY_SECONDS + 86_399;
            let utc = Utc::of_seconds(at);
            assert_eq!((utc.hour, utc.minute, utc.second), (23, 59, 59));
            assert_eq!(utc.seconds(), Some(at));
            let next = match (utc.day, utc.month) {
                (1, 1) => utc.year == before.year + 1 && (before.month, before.day) == (12, 31),
                (1, month) => {
                    let leap = utc.year % 4 == 0 && (utc.year % 100 != 0 || utc.year % 400 == 0);
                    let length = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30];
                    before.month == month - 1 && before.day == length[month as usize - 2]
                }
                (day, month) => before.month == month && before.day == day - 1,
            };
            assert!(next, "{before:?} {utc:?}");
            before = utc;
        }
    }

    #[test]
    fn what_is_none_is_none() {
        let good = Utc::of_seconds(1_795_773_630);
        assert_eq!((good.date().as_str(), good.hour), ("2026-11-27", 10));
        for bad in [
            Utc { year: 1969, ..good },
            Utc { month: 13, ..good },
            Utc { day: 0, ..good },
            Utc { day: 32, ..good },
            Utc { hour: 24, ..good },
            Utc { minute: 60, ..good },
            Utc { second: 61, ..good },
        ] {
            assert_eq!(bad.seconds(), None, "{bad:?}");
        }
    }
}
