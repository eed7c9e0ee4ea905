//! Curves that were read off published figures: a file of comma-separated values with the columns
//! `figure`, `series`, `idx`, `x` and `y`.

use std::collections::BTreeMap;

/// A point of a curve.
pub type Point = (f64, f64);

/// Published curves by figure and series. A figure can have several series of one name, in order.
#[derive(Debug, Default)]
pub struct PublishedSeries {
    curves: BTreeMap<(String, String), Vec<Vec<Point>>>,
}

impl PublishedSeries {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// The number of the first line that is not of this form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut curves: BTreeMap<_, Vec<Vec<Point>>> = BTreeMap::new();
        for (number, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty())
        {
            let fields = fields(line);
            let point = |fields: &[String]| {
                let [_, _, at, x, y] = fields else { return None };
                let at: usize = at.parse().ok()?;
                Some((at, (x.parse().ok()?, y.parse().ok()?)))
            };
            let Some((at, point)) = point(&fields) else {
                let form = "figure,series,idx,x,y";
                return Err(format!("line {}: must have the form {form}", number + 1));
            };
            let own = curves.entry((fields[0].clone(), fields[1].clone())).or_default();
            if at == 0 || own.is_empty() {
                own.push(Vec::new());
            }
            own.last_mut().expect("one was pushed").push(point);
        }
        Ok(Self { curves })
    }

    /// The first curve of this name in the figure whose file name ends so.
    pub fn curve(&self, figure: &str, series: &str) -> Option<&[Point]> {
        let is = |key: &&(String, String)| key.0.ends_with(figure) && key.1 == series;
        let key = self.curves.keys().find(is)?;
        self.curves[key].first().map(Vec::as_slice)
    }
}

/// The fields of a line. A field with commas stands in quotation marks.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut().expect("there is one").push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_names_and_curves_of_one_name_are_told_apart() {
        let text = "figure,series,idx,x,y\na/f.pdf,\"H, 2\",0,1.5,1\na/f.pdf,\"H, 2\",1,2.5,2\n\
                    a/f.pdf,\"H, 2\",0,9,1\n";
        let published = PublishedSeries::parse(text).expect("the form is right");
        assert_eq!(published.curve("/f.pdf", "H, 2"), Some(&[(1.5, 1.0), (2.5, 2.0)][..]));
        assert_eq!(published.curve("/f.pdf", "H"), None);
        let error = PublishedSeries::parse("head\na,b,c,d,e\n").expect_err("no number");
        assert!(error.starts_with("line 2"), "{error}");
    }
}
