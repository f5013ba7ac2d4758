//! Probability for small samples: order statistics around the median, and Student's distribution.
//! Pure arithmetic.

use crate::figure::number;

/// The number of outermost values of `count` independent ones that can be left out at one end. The
/// next value then lies beyond the median with probability `error` or less. `None` if even the
/// outermost value exceeds `error`.
///
/// Each value falls below the median with probability one half, whatever its distribution. So the
/// (k + 1)th least value lies above the median as often as k or fewer of `count` coins show tails.
pub fn left_out(count: usize, error: f64) -> Option<usize> {
    // Above about 1000, 2^-count underflows; the result for 1000 is a safe bound.
    let count = count.min(1000);
    let (mut tails, mut term, mut sum, mut out) = (0, 0.5_f64.powf(number(count)), 0.0, None);
    while tails < count {
        sum += term;
        if sum > error {
            break;
        }
        out = Some(tails);
        term *= number(count - tails) / number(tails + 1);
        tails += 1;
    }
    out
}

/// The value that Student's t with `freedom` degrees (1 or more) exceeds with probability `error`,
/// which is above 0 and at most one half.
pub(crate) fn student(error: f64, freedom: usize) -> f64 {
    let freedom = freedom.max(1);
    let (mut low, mut high) = (0.0, 1.0);
    while beyond(high, freedom) > error && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if beyond(middle, freedom) > error { low = middle } else { high = middle }
    }
    high
}

/// The one-sided probability that Student's T exceeds `t`, which is 0 or more (Abramowitz and
/// Stegun, 26.7.3 and 26.7.4).
fn beyond(t: f64, freedom: usize) -> f64 {
    let angle = (t / number(freedom).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let squared = cos * cos;
    let within = if freedom % 2 == 0 {
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..freedom / 2 {
            term *= number(2 * k - 1) / number(2 * k) * squared;
            sum += term;
        }
        sin * sum
    } else {
        let (mut term, mut sum) = (cos, 0.0);
        for k in 1..=freedom / 2 {
            sum += term;
            term *= number(2 * k) / number(2 * k + 1) * squared;
        }
        std::f64::consts::FRAC_2_PI * (angle + sin * sum)
    };
    (0.5 * (1.0 - within)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not even the full range of four values is enough.
    #[test]
    fn no_value_of_few_may_be_left_out() {
        // One-sided: 1/16 for four; 1/32 for five; for eight, 9/256 without the outermost and
        // 37/256 without two.
        for (count, out) in
            [(0, None), (1, None), (4, None), (5, Some(0)), (7, Some(0)), (8, Some(1)), (9, Some(1))]
        {
            assert_eq!(left_out(count, 0.05), out, "{count}");
        }
        assert_eq!((left_out(8, 0.05 / 12.0), left_out(8, 0.05 / 13.0)), (Some(0), None));
        assert_eq!(left_out(100, 0.05), Some(41));
        assert_eq!((left_out(1000, 1e-6), left_out(5000, 1e-6)), (Some(424), Some(424)));
    }

    #[test]
    fn students_distribution_is_that_of_the_tables() {
        for (error, freedom, t) in [
            (0.025, 1, 12.706),
            (0.025, 2, 4.303),
            (0.05, 2, 2.920),
            (0.05, 3, 2.353),
            (0.025, 6, 2.447),
            (0.05, 6, 1.943),
            (0.005, 7, 3.499),
            (0.001, 11, 4.025),
            (0.025, 20, 2.086),
            (0.05, 120, 1.658),
        ] {
            assert!(
                (student(error, freedom) - t).abs() < 6e-4 * t,
                "{error} {freedom}: {}",
                student(error, freedom)
            );
        }
        assert!(student(0.5, 3) < 1e-6 && student(1e-9, 1).is_finite());
    }
}
