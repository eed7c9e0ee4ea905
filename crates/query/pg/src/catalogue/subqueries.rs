//! Subqueries about what no table here has: defaults, sequences and collations of columns.
//!
//! SQLAlchemy's inspector asks for each of them by a subquery beside a row. The engine plans no
//! subquery beside a row that may give several rows. These give none, so that their answer is null.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Join, JoinOperator, Query, SelectItem, SetExpr, Statement, TableFactor, Value, VisitMut,
    VisitorMut,
};

/// Tables of the catalogue that have no rows here.
const WITHOUT_ROWS: [&str; 3] = ["pg_attrdef", "pg_sequence", "pg_collation"];

/// Puts null in the place of subqueries that find nothing.
pub(crate) fn answer_empty_subqueries(statement: &mut Statement) {
    let ControlFlow::Continue(()) = VisitMut::visit(statement, &mut Answerer);
}

struct Answerer;

impl VisitorMut for Answerer {
    type Break = std::convert::Infallible;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::Subquery(query) = expr
            && finds_nothing(query)
        {
            *expr = Expr::value(Value::Null);
        }
        ControlFlow::Continue(())
    }
}

fn finds_nothing(query: &Query) -> bool {
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    // All columns have the collation of the database.
    if let [SelectItem::UnnamedExpr(column)] = select.projection.as_slice()
        && column.to_string().ends_with("typcollation")
    {
        return true;
    }
    let [from] = select.from.as_slice() else { return false };
    // A count of no rows is 0, and the right table of an outer join keeps its rows.
    let is_count = |item: &SelectItem| {
        matches!(item, SelectItem::UnnamedExpr(Expr::Function(call))
            if call.name.to_string().eq_ignore_ascii_case("count"))
    };
    let keeps_right = |join: &Join| {
        !matches!(
            join.join_operator,
            JoinOperator::Join(_)
                | JoinOperator::Inner(_)
                | JoinOperator::Left(_)
                | JoinOperator::LeftOuter(_)
        )
    };
    if from.joins.iter().any(keeps_right) || select.projection.iter().any(is_count) {
        return false;
    }
    let TableFactor::Table { name, .. } = &from.relation else { return false };
    let name = name.to_string().to_ascii_lowercase();
    let table = name.rsplit('.').next().unwrap_or_default();
    WITHOUT_ROWS.contains(&table)
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn answered(sql: &str) -> String {
        let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap();
        statements.iter_mut().for_each(answer_empty_subqueries);
        statements[0].to_string()
    }

    #[test]
    fn only_subqueries_about_what_is_not_there_are_answered() {
        let asked = "SELECT a.attname, (SELECT d.adbin FROM pg_catalog.pg_attrdef AS d \
                     WHERE d.adrelid = a.attrelid) AS standard FROM pg_attribute AS a";
        let expected = "SELECT a.attname, NULL AS standard FROM pg_attribute AS a";
        assert_eq!(answered(asked), expected);
        let counted = "SELECT (SELECT count(*) FROM pg_attrdef) FROM pg_attribute";
        assert_eq!(answered(counted), counted);
        let joined = |join: &str| {
            format!(
                "SELECT (SELECT c.collname FROM pg_collation AS c {join} pg_namespace AS n ON \
                 n.oid = c.collnamespace) FROM pg_attribute"
            )
        };
        assert_eq!(answered(&joined("JOIN")), "SELECT NULL FROM pg_attribute");
        assert_eq!(answered(&joined("RIGHT JOIN")), joined("RIGHT JOIN"));
        let other = "SELECT (SELECT max(seq) FROM messages) FROM pg_attribute";
        assert_eq!(answered(other), other);
    }
}
