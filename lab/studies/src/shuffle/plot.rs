//! Draws a figure of the study as SVG. Each curve is a line through the medians, with a shaded band
//! between the 10th and 90th percentiles.

use std::fmt::Write as _;

use super::curves::{Curves, percentile};

/// Size of the drawing and of its margins, in units of the SVG.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 36.0;
/// Colours of curves. People with colour blindness can tell most of the eight apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#999933"];

/// The vertical scale.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// A scale that begins at zero, or just below all values when the values lie close together.
    fn of(all: &[f64]) -> Self {
        let high = all.iter().copied().fold(0.0, f64::max).max(1e-9);
        let low = all.iter().copied().fold(high, f64::min);
        if low > 0.85 * high {
            let margin = ((high - low) * 0.2).max(high * 0.002);
            return Self { low: low - margin, high: high + margin };
        }
        Self { low: 0.0, high: high * 1.05 }
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)
    }
}

/// The horizontal position of a point on an axis that ends at `end`.
fn x(at: f64, end: f64) -> f64 {
    LEFT + at / end * (WIDTH - LEFT - RIGHT)
}

/// The drawing; `None` while there are no values.
pub fn svg(figure: &Curves) -> Option<String> {
    let all: Vec<f64> = figure.curves.iter().flat_map(|c| &c.1).flatten().copied().collect();
    if all.is_empty() {
        return None;
    }
    let scale = Scale::of(&all);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"16\">{}: {}</text>\n",
        figure.number, figure.title
    );
    // Skewness ends at 1. Normalised times may be longer.
    let end = figure.at.iter().copied().fold(1.0, f64::max);
    axes(&mut out, &scale, figure.x, end);
    for (at, (name, curve)) in figure.found().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        // Curves beyond the eighth repeat the colours with dashed lines.
        let dash = if at < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let line = |percent| {
            let points = figure.at.iter().zip(curve).filter_map(|(&at, values)| {
                Some(format!("{:.1},{:.1}", x(at, end), scale.y(percentile(values, percent)?)))
            });
            points.collect::<Vec<_>>()
        };
        let mut shade = line(10);
        shade.extend(line(90).into_iter().rev());
        let (shade, line) = (shade.join(" "), line(50).join(" "));
        let y = TOP + 12.0 + 17.0 * at as f64;
        let (begin, end) = (WIDTH - RIGHT + 12.0, WIDTH - RIGHT + 34.0);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<polygon points=\"{shade}\" fill=\"{colour}\" opacity=\"0.15\"/>\n\
             <polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"\
             {dash}/>\n<line x1=\"{begin}\" y1=\"{y}\" x2=\"{end}\" y2=\"{y}\" \
             stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n<text x=\"{}\" y=\"{}\">{name}\
             </text>\n",
            end + 6.0,
            y + 4.0
        );
    }
    out.push_str("</svg>\n");
    Some(out)
}

fn axes(out: &mut String, scale: &Scale, below: &str, end: f64) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for step in 0..=4 {
        let value = scale.low + (scale.high - scale.low) * f64::from(step) / 4.0;
        let y = scale.y(value);
        let digits = if scale.high - scale.low < 0.5 { 3 } else { 1 };
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.digits$}</text>\n",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for step in 0..=5 {
        let at = end * f64::from(step) / 5.0;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{:.1}</text>",
            x(at, end),
            bottom + 15.0,
            at
        );
    }
    let middle = (LEFT + right) / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{below}</text>",
        bottom + 30.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_drawn_with_a_line_for_each_curve() {
        let (number, title, x, worst) = ("0", "t", "time", 10);
        let of = |values: Vec<f64>| {
            let curves = vec![("a".to_owned(), vec![values.clone(), values])];
            Curves { number, title, x, at: vec![0.5, 2.0], worst, curves }
        };
        assert_eq!(svg(&of(Vec::new())), None);
        let drawing = svg(&of(vec![20.0, 25.0])).expect("there are values");
        assert_eq!(drawing.matches("<polyline").count(), 1);
        assert!(!drawing.contains("NaN"), "{drawing}");
    }
}
