package policy

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

func readSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// Every field that the parser knows is in the schema and the other way round, and so are those that it requires.
func TestSchemaKnowsWhatTheParserKnows(t *testing.T) {
	defs := readSchema(t).Defs
	for name, want := range map[string]struct{ fields, required []string }{
		"document":  {documentFields, []string{"schema", "policies"}},
		"policy":    {policyFields, requiredFields},
		"match":     {matchFields, nil},
		"cost":      {costFields, nil},
		"costRule":  {costRuleFields, []string{"cost"}},
		"tier":      {variedFields, nil},
		"override":  {overrideFields, []string{"key"}},
		"ban":       {banFields, banFields},
		"onFailure": {[]string{"redis", "allocator"}, []string{"redis"}},
		"selector":  {selectorFields, nil},
	} {
		def := defs[name]
		if def == nil {
			t.Errorf("the schema has no %s", name)
			continue
		}
		if diff := cmp.Diff(slices.Sorted(slices.Values(want.fields)), slices.Sorted(maps.Keys(def.Properties))); diff != "" {
			t.Errorf("fields of %s (-parser +schema):\n%s", name, diff)
		}
		if diff := cmp.Diff(slices.Sorted(slices.Values(want.required)), slices.Sorted(slices.Values(def.Required))); diff != "" {
			t.Errorf("required fields of %s (-parser +schema):\n%s", name, diff)
		}
		if def.AdditionalProperties == nil {
			t.Errorf("%s takes unknown fields", name)
		}
	}
	pattern := regexp.MustCompile(defs["policy"].Properties["key"].Items.Pattern)
	for _, part := range partNames() {
		if !pattern.MatchString(part) {
			t.Errorf("the schema does not know the key part %s", part)
		}
	}
	algorithms := algorithmNames()
	for i, value := range defs["policy"].Properties["algorithm"].Enum {
		if value != algorithms[i] {
			t.Errorf("algorithm %d is %v in the schema, %s to the parser", i, value, algorithms[i])
		}
	}
}

// valid tells whether a document that YAML can read is valid by the schema.
func valid(t testing.TB, schema *jsonschema.Resolved, source string) error {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(source))
	if err != nil {
		t.Fatalf("%v in\n%s", err, source)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value)
}

// What the parser accepts the schema accepts, and of what the parser refuses for its form the schema refuses as much as it can.
func TestSchemaValidatesDocuments(t *testing.T) {
	schema, err := readSchema(t).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	good := []string{
		full, overridden, policyWith(costly), policyWith("burst: 0"), policyWith("enforce: 12.5%"), policyWith("cost: 5"), policyWith("key: [all]"),
		keyed(`"header:X-A", "claim:o"`, "owner: 7"), exempting("{ip: 10.0.0.0/8}, {user: 7}, {\"claim:o\": true}"), exempting("{api_key: " + hexKey + "}"),
		policyWith("match: {hosts: [\"*.a.b\", A.b], headers: {X-A: [1, b]}, query: {q: \"*\"}, tiers: [g], claims: {o: 1.5}, regions: [eu, us]}"),
		quota("month", "timezone: Europe/Rome", "anchor: 28"), quota("week", "anchor: sun", "tiers: {a: {limit: 5}}"), quota("90s"), quota("day", "max_delay: 0s"),
		regional("algorithm: sliding_window_log", "limit: 10", "window: 1h", "ban: {denials: 1, within: 1m, for: 1h}"),
		regional("algorithm: concurrency", "limit: 10", "overrides: [{key: {user: a}, limit: 5}]"), regional("algorithm: sliding_window_counter", "limit: 10", "window: 1ms"),
		regional("algorithm: token_bucket", "rate: 5/s", "max_delay: 2s", "cost: {actual: X-Cost, refund: [502, \"503\"]}"), candidate("candidate_of: p"),
		policyWith("on_failure: {redis: local, allocator: open}"), policyWith("tiers: {\"1\": {rate: 1/90s, burst: 2}}"), policyWith("lease_wait: 0s"),
	}
	for _, file := range []string{"../../deployments/demo/policies.yaml", "../../deployments/compose/policies.yaml"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		good = append(good, string(source))
	}
	for _, source := range good {
		mustParse(t, source)
		if err := valid(t, schema, source); err != nil {
			t.Errorf("the schema refuses %v\n%s", err, source)
		}
	}
	for _, source := range []string{
		quota("month", "anchor: 29"), quota("month", "anchor: 0"), quota("month", "anchor: monday"), quota("year"), quota("day", "rate: 1/s"), quota("1h", "max_delay: 1s"),
		quota("1h", "scope: global"), quota("1h", "tiers: {a: {}}"), quota("1h", "limit: -1"), quota("1h", "limit: 1000000000001"), quota("1h", "ban: {denials: 0, within: 1m, for: 1m}"),
		quota("1h", "ban: {denials: 1, within: 1m}"), quota("1h", "cost: {refund: [404]}"), regional("algorithm: sliding_window_log", "limit: 1"), regional("algorithm: concurrency", "window: 1h", "limit: 1"),
		regional("algorithm: concurrency"), policyWith("limit: 5"), policyWith("window: 1h"), candidate("candidate_of: P"),
		policyWith("qqqq: 1"), policyWith("burst: -1"), policyWith("burst: 1.5"), policyWith("rate: 100"), policyWith("rate: -1/s"), policyWith("name: API"),
		policyWith("scope: world"), policyWith("on_failure: {allocator: open}"), policyWith("on_failure: close"), policyWith("key: []"), policyWith("key: [usr]"),
		policyWith("cost: 0"), policyWith("cost: -1"), policyWith("cost: {defaut: 2}"), policyWith("cost: {header: X-Cost}"), policyWith("cost: {rules: [{methods: [POST]}]}"),
		policyWith("match: {path: [/a]}"), policyWith("match: {methods: [get]}"), policyWith("match: {paths: [v1]}"), policyWith("match: {hosts: [\"a:80\"]}"),
		policyWith("match: {headers: {X-A: []}}"), policyWith("match: {headers: [X-A]}"), policyWith("match: {tiers: [\"a b\"]}"), policyWith("match: {regions: [EU]}"),
		policyWith("overrides: [{rate: 1/s}]"), policyWith("overrides: [{key: {user: a}}]"), policyWith("overrides: [{key: {usr: a}, rate: 1/s}]"),
		policyWith("tiers: {a: {burst: 1}}"), policyWith("tiers: {a: {rate: 1/s, bust: 1}}"), policyWith("enforce: true"), policyWith("enforce: 50"),
		without("name"), without("key"), without("algorithm"), without("scope"), without("on_failure"), exempting("{}"), exempting("{api_key: s3cret}"),
		exempting("{usr: a}"), "schema: 2\npolicies: []\n", "policies: []\n", "schema: 1\n", "schema: 1\npolices: []\n",
		strings.Replace(policyWith("on_loss: half"), "global", "region", 1), policyWith("missing: 401"), policyWith("algorithm: gcra"),
	} {
		if d, _ := Parse([]byte(source)); d != nil {
			t.Errorf("the parser accepts\n%s", source)
		}
		if err := valid(t, schema, source); err == nil {
			t.Errorf("the schema accepts\n%s", source)
		}
	}
}
