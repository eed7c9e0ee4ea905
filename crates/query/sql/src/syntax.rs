//! What a statement says beyond DataFusion's SQL: rewritten in the syntax tree, before planning.
//!
//! ```text
//! a ASOF JOIN b MATCH_CONDITION (m) ON c   becomes   a LEFT JOIN b ON c AND __match_condition(m)
//! first(value, by)                         becomes   first_value(value ORDER BY by)
//! last(value, by)                          becomes   last_value(value ORDER BY by)
//! vwap(price, size)                        becomes   sum(price * size) / nullif(sum(s), 0)
//!                                                    where s is the size beside a price
//! ```

use std::ops::ControlFlow;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArgumentList, FunctionArguments, Ident, JoinConstraint, JoinOperator, ObjectName,
    OrderByExpr, OrderByOptions, SelectItem, Statement, TableAlias, TableFactor, TableWithJoins,
    VisitMut, VisitorMut,
};

/// The function that carries `MATCH_CONDITION` from the syntax tree into the plan.
pub(crate) const MARK: &str = "__match_condition";

/// Rewrites a statement in place.
///
/// # Errors
/// An `ASOF JOIN` whose keys stand in `USING` or are left to `NATURAL`.
pub(crate) fn rewrite_statement(statement: &mut Statement) -> Result<(), String> {
    match VisitMut::visit(statement, &mut Rewriter::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

#[derive(Default)]
struct Rewriter {
    /// Derived tables around the place of the visitor.
    depth: usize,
    /// Derived tables that got a name so far.
    named: usize,
}

impl VisitorMut for Rewriter {
    type Break = String;

    fn pre_visit_query(&mut self, query: &mut sqlparser::ast::Query) -> ControlFlow<Self::Break> {
        match rewrite_set(&mut query.body) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    /// Names a derived table without a name that stands in another one. DataFusion 55.2 takes two
    /// equal lists of columns, one over the other, for one: `SELECT x * 2 AS x FROM (SELECT x * 2
    /// AS x FROM (VALUES ...` would double once.
    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        if let TableFactor::Derived { alias, .. } = table {
            if alias.is_none() && self.depth > 0 {
                self.named += 1;
                let name = Ident::new(format!("__derived_{}", self.named));
                *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
            }
            self.depth += 1;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        self.depth -= usize::from(matches!(table, TableFactor::Derived { .. }));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::Function(function) = expr
            && let Some(other) = rewrite_function(function)
        {
            *expr = other;
        }
        ControlFlow::Continue(())
    }
}

fn rewrite_set(body: &mut sqlparser::ast::SetExpr) -> Result<(), String> {
    use sqlparser::ast::SetExpr;
    match body {
        SetExpr::Select(select) => {
            select.projection.iter_mut().for_each(name_function);
            select.from.iter_mut().try_for_each(rewrite_joins)
        }
        // The query inside is visited by itself.
        SetExpr::Query(_) => Ok(()),
        SetExpr::SetOperation { left, right, .. } => {
            rewrite_set(left)?;
            rewrite_set(right)
        }
        _ => Ok(()),
    }
}

/// Names a column after the function that the statement calls, and not after what stands for it.
fn name_function(item: &mut SelectItem) {
    let SelectItem::UnnamedExpr(expr @ Expr::Function(_)) = item else { return };
    let Expr::Function(function) = &*expr else { return };
    if rewrite_function(function).is_some() {
        let alias = Ident::with_quote('"', expr.to_string());
        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
    }
}

fn rewrite_joins(from: &mut TableWithJoins) -> Result<(), String> {
    let factors = std::iter::once(&mut from.relation);
    for factor in factors.chain(from.joins.iter_mut().map(|join| &mut join.relation)) {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            rewrite_joins(table_with_joins)?;
        }
    }
    for join in &mut from.joins {
        let JoinOperator::AsOf { match_condition, constraint } = &join.join_operator else {
            continue;
        };
        let mark = call(MARK, vec![match_condition.clone()]);
        let on = match constraint {
            JoinConstraint::None => mark,
            JoinConstraint::On(keys) => Expr::BinaryOp {
                left: Box::new(Expr::Nested(Box::new(keys.clone()))),
                op: BinaryOperator::And,
                right: Box::new(mark),
            },
            JoinConstraint::Using(_) | JoinConstraint::Natural => {
                return Err(
                    "an ASOF JOIN names its keys by ON, as in ON a.symbol = b.symbol".to_owned()
                );
            }
        };
        join.join_operator = JoinOperator::Left(JoinConstraint::On(on));
    }
    Ok(())
}

fn rewrite_function(function: &Function) -> Option<Expr> {
    let [name] = function.name.0.as_slice() else { return None };
    let name = name.as_ident()?.value.to_ascii_lowercase();
    let FunctionArguments::List(list) = &function.args else { return None };
    let [one, two] = list.args.as_slice() else { return None };
    let (one, two) = (plain_argument(one)?, plain_argument(two)?);
    match name.as_str() {
        "first" => Some(order_call("first_value", function, one, two)),
        "last" => Some(order_call("last_value", function, one, two)),
        "vwap" => Some(vwap_expression(function, one, two)),
        _ => None,
    }
}

fn plain_argument(arg: &FunctionArg) -> Option<Expr> {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    }
}

fn order_call(name: &str, function: &Function, value: Expr, by: Expr) -> Expr {
    let options = OrderByOptions { asc: Some(true), nulls_first: Some(false) };
    let order = OrderByExpr { expr: by, options, with_fill: None };
    let list = FunctionArgumentList {
        duplicate_treatment: None,
        args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))],
        clauses: vec![FunctionArgumentClause::OrderBy(vec![order])],
    };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        args: FunctionArguments::List(list),
        ..function.clone()
    })
}

/// The volume-weighted average price. Without volume there is none, so it is null. A size without a
/// price weighs nothing: the trades of orders that were never added have no price.
fn vwap_expression(function: &Function, price: Expr, size: Expr) -> Expr {
    let sum = |of: Expr| {
        let mut sum = call_function("sum", vec![of]);
        (sum.filter, sum.over) = (function.filter.clone(), function.over.clone());
        Expr::Function(sum)
    };
    let nested = |expr: Expr| Box::new(Expr::Nested(Box::new(expr)));
    let turnover = Expr::BinaryOp {
        left: nested(price.clone()),
        op: BinaryOperator::Multiply,
        right: nested(size.clone()),
    };
    let priced = CaseWhen { condition: Expr::IsNotNull(nested(price)), result: size };
    let size_of_priced = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![priced],
        else_result: None,
    };
    let zero = Expr::value(sqlparser::ast::Value::Number("0".into(), false));
    let ratio = Expr::BinaryOp {
        left: Box::new(sum(turnover)),
        op: BinaryOperator::Divide,
        right: Box::new(call("nullif", vec![sum(size_of_priced), zero])),
    };
    Expr::Nested(Box::new(ratio))
}

fn call(name: &str, args: Vec<Expr>) -> Expr {
    Expr::Function(call_function(name, args))
}

fn call_function(name: &str, args: Vec<Expr>) -> Function {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}
