//! The pictures of an experiment as PNG: for slides and mails, and where no browser is.
//!
//! Drawn in memory with an embedded font: no fonts, no display and no libraries of the system.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::error::ExperimentError;
use super::report::{Group, Page, Point};

/// Pixels of a picture.
const SIZE: (u32, u32) = (1_600, 900);
/// Colours of the groups, those of the page.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 95, 208),
    RGBColor(208, 106, 0),
    RGBColor(18, 128, 92),
    RGBColor(198, 47, 69),
    RGBColor(122, 79, 208),
    RGBColor(12, 143, 150),
    RGBColor(194, 64, 143),
    RGBColor(124, 122, 20),
];
const INK: RGBColor = RGBColor(27, 36, 48);
const LINE: RGBColor = RGBColor(223, 227, 233);

type Canvas<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// One picture: its name, title and what its values are.
struct Curves<'a> {
    title: String,
    across: &'a str,
    up: &'a str,
    lines: Vec<(&'a str, Vec<(f64, f64)>)>,
    /// Whether the vertical axis is a share.
    shares: bool,
}

fn embed_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        for style in [FontStyle::Normal, FontStyle::Bold] {
            // A font that cannot be read leaves pictures without words, which the tests notice.
            drop(register_font("sans-serif", style, font));
        }
    });
}

/// Least and most of these, a little apart.
fn range(values: impl Iterator<Item = f64>, from_zero: bool) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite()) {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return (0.0, 1.0);
    }
    let low = if from_zero { 0.0 } else { low };
    let pad = ((high - low) * 0.04).max(high.abs() * 0.01).max(1e-9);
    (if from_zero { 0.0 } else { low - pad }, high + pad)
}

impl Curves<'_> {
    fn draw(&self, canvas: &Canvas<'_>) -> Drawn {
        canvas.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let across = range(points().map(|point| point.0), !self.shares);
        let up = if self.shares { (0.0, 1.0) } else { range(points().map(|point| point.1), true) };
        let mut chart = ChartBuilder::on(canvas)
            .margin(24)
            .caption(&self.title, ("sans-serif", 34, &INK))
            .x_label_area_size(64)
            .y_label_area_size(96)
            .build_cartesian_2d(across.0..across.1, up.0..up.1)?;
        let percent = |share: &f64| format!("{:.0} %", share * 100.0);
        let plain = |value: &f64| format!("{value:.0}");
        let words: &dyn Fn(&f64) -> String = if self.shares { &percent } else { &plain };
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(LINE)
            .axis_style(INK)
            .label_style(("sans-serif", 22, &INK))
            .axis_desc_style(("sans-serif", 24, &INK))
            .x_desc(self.across)
            .y_desc(self.up)
            .y_label_formatter(words)
            .draw()?;
        for (i, (name, points)) in self.lines.iter().enumerate() {
            let style = COLOURS[i % COLOURS.len()].stroke_width(3);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(LINE)
            .label_font(("sans-serif", 22, &INK))
            .draw()?;
        Ok(())
    }

    fn write(&self, path: &Path) -> Drawn {
        let (width, height) = SIZE;
        let mut pixels = vec![0; (width * height * 3) as usize];
        {
            let canvas = BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area();
            self.draw(&canvas)?;
            canvas.present()?;
        }
        let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&pixels)?;
        Ok(())
    }
}

fn over_time<'a>(page: &'a Page, what: &str, of: fn(&Point) -> f64) -> Curves<'a> {
    let line = |group: &Group| group.series.iter().map(|p| (p.at_s, of(p))).collect();
    Curves {
        title: format!("{what} of the worst leaf"),
        across: "seconds",
        up: "microseconds",
        lines: page.groups.iter().map(|group| (group.name.as_str(), line(group))).collect(),
        shares: false,
    }
}

/// Writes `cdf.png`, `p50.png`, `p90.png` and `stddev.png` into a directory; says where they are.
///
/// # Errors
/// Which file, and what the system says.
pub fn write(page: &Page, directory: &Path) -> Result<Vec<PathBuf>, ExperimentError> {
    embed_font();
    let cdf = Curves {
        title: "Delay of the worst leaf".into(),
        across: "microseconds",
        up: "share of probes",
        lines: page.groups.iter().map(|group| (group.name.as_str(), body(group))).collect(),
        shares: true,
    };
    let pictures = [
        ("cdf.png", cdf),
        ("p50.png", over_time(page, "Median", |point| point.p50_us)),
        ("p90.png", over_time(page, "90th percentile", |point| point.p90_us)),
        ("stddev.png", over_time(page, "Standard deviation", |point| point.stddev_us)),
    ];
    let mut written = Vec::new();
    for (name, curves) in pictures {
        let path = directory.join(name);
        curves.write(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// A distribution up to its 99th percentile: beyond it a spike would flatten all others.
fn body(group: &Group) -> Vec<(f64, f64)> {
    group.cdf.iter().copied().filter(|(_, share)| *share <= 0.99).collect()
}
