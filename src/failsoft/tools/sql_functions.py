"""Functions that a query may call, by database: those that compute from their arguments, and nothing else.

Only names that the parser does not know as functions of its own are looked up here. What reads files, opens
connections, runs text, sleeps, changes settings or tells of the server is not on these lists, nor is what nobody has
heard of; a tool permits its own by ``functions``. SQLite's ``printf`` is not there because one call of it can take half
a minute in which SQLite cannot be interrupted.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PERMITTED", "SQLITE_FUNCTIONS", "TABLE_FUNCTIONS"]

_COMMON: Final = """
abs acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh cot degrees exp floor ln log log10 log2 mod pi pow
power radians round sign sin sinh sqrt tan tanh trunc cbrt gcd lcm factorial greatest least coalesce nullif ifnull iif
char chr ascii unicode concat concat_ws instr left right length char_length character_length octet_length bit_length
lower upper ltrim rtrim trim btrim lpad rpad repeat replace reverse substr substring position strpos split_part
starts_with ends_with contains translate initcap overlay md5 sha1 sha256 sha512 hex unhex quote regexp_matches
regexp_replace regexp_extract regexp_split_to_array regexp_like regexp_count regexp_instr regexp_substr soundex
levenshtein avg count max min sum total group_concat string_agg array_agg bool_and bool_or every any_value stddev
stddev_pop stddev_samp variance var_pop var_samp corr covar_pop covar_samp regr_slope regr_intercept regr_r2
regr_count regr_avgx regr_avgy regr_sxx regr_sxy regr_syy median mode percentile_cont percentile_disc bit_and bit_or
bit_xor row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value grouping
date time datetime julianday unixepoch strftime strptime timediff age date_part date_trunc date_diff date_add date_sub
extract now current_date current_time current_timestamp localtime localtimestamp make_date make_time make_timestamp
to_timestamp to_date to_char to_number isfinite justify_days justify_hours justify_interval json json_array
json_array_length json_extract json_object json_type json_valid json_quote json_group_array json_group_object typeof
cast try_cast
"""

_SQLITE: Final = """
json_extract json_insert json_patch json_remove json_replace json_set json_pretty json_error_position jsonb
jsonb_array jsonb_extract jsonb_object likelihood likely unlikely like glob max min subtype zeroblob random randomblob
string_agg concat if octet_length
"""

_DUCKDB: Final = """
format printf list_transform list_filter list_reduce list_aggregate list_aggr list_sum list_avg list_min list_max
list_count list_sort list_reverse_sort list_distinct list_unique list_contains list_has list_position list_slice
list_concat list_append list_prepend list_zip list_value list_extract list_element list_any_value len array_slice
array_value array_length array_transform array_filter flatten unnest range generate_series struct_pack struct_extract
struct_insert row map map_keys map_values map_entries map_from_entries element_at cardinality arg_max arg_min argmax
argmin max_by min_by approx_count_distinct approx_quantile approx_top_k quantile quantile_cont quantile_disc histogram
entropy kurtosis skewness mad sem product favg fsum kahan_sum first last list array_agg bitstring_agg geomean countif
count_if count_star epoch epoch_ms epoch_us epoch_ns dayname monthname dayofmonth dayofweek dayofyear weekday
weekofyear yearweek isodow isoyear century decade millennium microsecond millisecond minute second hour day week month
quarter year era timezone last_day time_bucket date_sub datesub datediff datepart datetrunc make_timestamptz
try_strptime to_days to_hours to_minutes to_months to_seconds to_weeks to_years to_milliseconds to_microseconds today
jaccard jaro_similarity jaro_winkler_similarity damerau_levenshtein hamming mismatches editdist3 nfc_normalize
strip_accents string_split string_split_regex str_split str_split_regex regexp_full_match regexp_extract_all
regexp_split_to_table prefix suffix bar bin ord to_base to_base64 from_base64 from_hex to_hex url_encode url_decode
format_bytes parse_filename parse_path hash xor even gamma lgamma nextafter isnan isinf signbit fdiv fmod divide
multiply add subtract setbit get_bit bit_count bit_position bit_length error json_keys json_structure json_contains
json_exists json_value json_transform json_transform_strict json_group_structure json_extract_string json_extract_path
json_extract_path_text to_json from_json array_to_json row_to_json json_merge_patch enum_range enum_first enum_last
enum_code union_tag union_value union_extract combine gen_random_uuid uuid random list_cosine_similarity
list_inner_product list_distance array_cosine_similarity array_distance array_inner_product equi_width_bins
can_cast_implicitly ifnull nullif
"""

_POSTGRES: Final = """
array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position array_positions
array_prepend array_remove array_replace array_to_string array_upper cardinality string_to_array trim_array unnest
generate_series generate_subscripts array_to_json json_agg jsonb_agg json_object_agg jsonb_object_agg json_build_array
jsonb_build_array json_build_object jsonb_build_object json_array_elements jsonb_array_elements
json_array_elements_text jsonb_array_elements_text jsonb_array_length json_each jsonb_each json_each_text
jsonb_each_text json_extract_path jsonb_extract_path json_extract_path_text jsonb_extract_path_text json_object_keys
jsonb_object_keys json_typeof jsonb_typeof jsonb_set jsonb_insert jsonb_pretty jsonb_path_query jsonb_path_query_array
jsonb_path_query_first jsonb_path_exists jsonb_path_match json_strip_nulls jsonb_strip_nulls to_json to_jsonb
row_to_json json_to_record jsonb_to_record json_to_recordset jsonb_to_recordset date_bin clock_timestamp
statement_timestamp transaction_timestamp timeofday timezone make_interval make_timestamptz encode decode format
quote_ident quote_literal quote_nullable convert_from convert_to to_hex to_ascii regexp_match regexp_split_to_table
parse_ident normalize unistr string_to_table num_nulls num_nonnulls width_bucket scale min_scale trim_scale div erf
erfc random sind cosd tand asind acosd atand gen_random_uuid get_bit get_byte set_bit set_byte bit_count sha224 sha384
crc32 crc32c regr_sxx jsonb_object json_object range_agg range_intersect_agg lower_inc upper_inc lower_inf upper_inf
isempty range_merge int4range int8range numrange daterange tsrange tstzrange to_tsvector to_tsquery plainto_tsquery
phraseto_tsquery websearch_to_tsquery ts_rank ts_rank_cd ts_headline tsvector_to_array numnode querytree setweight
strip area center diagonal diameter height width hostmask masklen netmask network broadcast family abbrev inet_merge
inet_same_family enum_first enum_last enum_range similarity word_similarity unaccent pg_typeof ordinality
"""

_SQLITE_ROWS: Final = """
json_each json_tree generate_series
"""

_DUCKDB_ROWS: Final = """
exploding_generate_series range generate_series unnest json_each json_tree explode regexp_split_to_table
"""

_POSTGRES_ROWS: Final = """
exploding_generate_series generate_series unnest explode generate_subscripts json_array_elements jsonb_array_elements
json_array_elements_text jsonb_array_elements_text json_each jsonb_each json_each_text jsonb_each_text
json_object_keys jsonb_object_keys jsonb_path_query json_to_record jsonb_to_record json_to_recordset
jsonb_to_recordset regexp_matches regexp_split_to_table string_to_table
"""

PERMITTED: Final[dict[str, frozenset[str]]] = {
    "common": frozenset(_COMMON.split()),
    "sqlite": frozenset(_SQLITE.split()),
    "duckdb": frozenset(_DUCKDB.split()),
    "postgres": frozenset(_POSTGRES.split()),
}
"""Names in lower case, by database; ``common`` for all."""

TABLE_FUNCTIONS: Final[dict[str, frozenset[str]]] = {
    "sqlite": frozenset(_SQLITE_ROWS.split()),
    "duckdb": frozenset(_DUCKDB_ROWS.split()),
    "postgres": frozenset(_POSTGRES_ROWS.split()),
}
"""Functions that may stand where a table does."""

SQLITE_FUNCTIONS: Final = PERMITTED["common"] | PERMITTED["sqlite"] | {"->", "->>", "regexp", "match"}
"""What SQLite's own authorizer lets through, by the names that SQLite gives them."""
