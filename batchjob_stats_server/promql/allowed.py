"""The functions and operators of PromQL that the gate accepts: they read only their arguments."""

_OPERATORS = "+ - * / % ^ == != > < >= <= and or unless atan2"

_AGGREGATIONS = """
sum avg count min max group stddev stdvar topk bottomk count_values quantile
"""

# Functions of Prometheus 2 and 3, except info(), which reads series that no selector names.
_FUNCTIONS = """
abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes clamp
clamp_max clamp_min cos cosh count_over_time day_of_month day_of_week day_of_year days_in_month
deg delta deriv exp floor histogram_avg histogram_count histogram_fraction histogram_quantile
histogram_stddev histogram_stdvar histogram_sum holt_winters double_exponential_smoothing hour
idelta increase irate label_join label_replace last_over_time ln log10 log2 mad_over_time
max_over_time min_over_time minute month pi predict_linear present_over_time quantile_over_time
rad rate resets round scalar sgn sin sinh sort sort_desc sort_by_label sort_by_label_desc sqrt
stddev_over_time stdvar_over_time sum_over_time tan tanh time timestamp vector year
"""

OPERATORS = frozenset(_OPERATORS.split())
AGGREGATIONS = frozenset(_AGGREGATIONS.split())
FUNCTIONS = frozenset(_FUNCTIONS.split())
LABEL_FUNCTIONS = frozenset({"label_join", "label_replace"})

# Metrics that belong to no user and reveal nothing about jobs.
PUBLIC_METRICS = frozenset(
    {"batchjob_emission_factor_grams_per_kilowatt_hour", "batchjob_emission_factor_age_seconds"}
)
