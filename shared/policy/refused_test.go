package policy

import (
	"fmt"
	"strings"
	"testing"
)

// policyWith is a good policy from line 3 on, with one more line, or another for the one that begins alike.
func policyWith(line string) string {
	lines := []string{"name: p", "key: [user]", "algorithm: token_bucket", "rate: 100/min", "scope: global", "on_failure: closed"}
	field, _, _ := strings.Cut(line, ":")
	replaced := false
	for i := range lines {
		if strings.HasPrefix(lines[i], field+":") {
			lines[i], replaced = line, true
		}
	}
	if !replaced {
		lines = append(lines, line)
	}
	return "schema: 1\npolicies:\n  - " + strings.Join(lines, "\n    ") + "\n"
}

func without(field string) string {
	source := policyWith(field + ": X")
	source = strings.Replace(source, "- "+field+": X\n    ", "- ", 1)
	return strings.Replace(source, "    "+field+": X\n", "", 1)
}

// refusal is what a bad document is told: where, and parts of what and how.
type refusal struct {
	source, at, message, remedy string
}

func (want refusal) check(t *testing.T) {
	t.Helper()
	d, problems := Parse([]byte(want.source))
	if d != nil {
		t.Fatalf("Parse accepts\n%s", want.source)
	}
	var all []string
	for _, p := range problems {
		all = append(all, p.String())
		if p.Severity == SeverityError && fmt.Sprintf("%d:%d", p.Line, p.Column) == want.at &&
			strings.Contains(p.Message, want.message) && strings.Contains(p.Remedy, want.remedy) {
			return
		}
	}
	t.Errorf("Parse of\n%ssays\n  %s\nwant an error at %s like %q with a remedy like %q",
		want.source, strings.Join(all, "\n  "), want.at, want.message, want.remedy)
}

// alone fails where a document with one mistake is told of more.
func (want refusal) alone(t *testing.T) {
	t.Helper()
	if _, problems := Parse([]byte(want.source)); len(problems) != 1 {
		t.Errorf("Parse of one mistake says %d things: %v", len(problems), problems)
	}
}

func TestParseRefusesText(t *testing.T) {
	for name, want := range map[string]refusal{
		"empty":                  {"", "1:1", "is empty", "schema: 1"},
		"only a comment":         {"# nothing\n", "1:1", "is empty", "schema: 1"},
		"not UTF-8":              {"schema: \xff\n", "1:1", "UTF-8", "UTF-8"},
		"zero byte":              {"schema: \x00\n", "1:1", "zero byte", "UTF-8"},
		"a list":                 {"- a\n", "1:1", "is a list, not a mapping", "policies:"},
		"a word":                 {"hello\n", "1:1", "is a single value", "policies:"},
		"open bracket":           {"schema: 1\npolicies: [\n", "2:11", "not valid YAML", "brackets"},
		"open quote":             {"schema: 1\npolicies: \"\n", "2:11", "not valid YAML", "quotes"},
		"tab for indentation":    {"schema: 1\npolicies:\n\t- name: a\n", "3:1", "not valid YAML", "indentation"},
		"two documents":          {"schema: 1\npolicies: []\n---\nschema: 1\n", "3:1", "second document", "one document"},
		"content after the end":  {"schema: 1\npolicies: []\n...\nschema: 1\n", "1:1", "more than one document", "one document"},
		"anchor":                 {policyWith("owner: &a x"), "9:12", "anchors", "write the value out"},
		"alias":                  {policyWith("owner: *a"), "9:12", "aliases", "quotes"},
		"merge":                  {policyWith("<<: {a: b}"), "9:5", "merges", "write the value out"},
		"tag":                    {policyWith("owner: !!str x"), "9:12", "tags", "remove the tag"},
		"directive":              {"%YAML 1.2\n---\nschema: 1\n", "1:1", "directives", "remove"},
		"announced name":         {"? schema\n: 1\n", "1:1", "announced", "name: value"},
		"two names on a line":    {"schema: 1\npolicies: name: a\n", "2:15", "second `: `", "quotes"},
		"list directly in list":  {"schema: 1\npolicies:\n  - - name: a\n", "3:5", "directly in a list", "one `- ` a line"},
		"nested too deep":        {deeper(maxDepth + 2), "1:1", "too deep", "example"},
		"too many open brackets": {"a: " + strings.Repeat("[", 17), "1:20", "16 brackets", "close"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

func TestParseRefusesDocument(t *testing.T) {
	twice := policyWith("owner: x") + strings.TrimPrefix(policyWith("owner: y"), "schema: 1\npolicies:\n")
	for name, want := range map[string]refusal{
		"schema missing":        {"policies: []\n", "1:1", "schema is missing", "schema: 1"},
		"schema of the future":  {"schema: 2\npolicies: []\n", "1:9", "schema 2 is not known", "schema: 1"},
		"schema is a list":      {"schema: [1]\npolicies: []\n", "1:9", "is a list", "schema: 1"},
		"policies missing":      {"schema: 1\n", "1:1", "policies is missing", "list of policies"},
		"policies without":      {"schema: 1\npolicies:\n", "2:1", "policies has no value", "give it a value"},
		"policies a mapping":    {"schema: 1\npolicies: {a: b}\n", "2:11", "policies is a mapping, not a list", "- name"},
		"policy a word":         {"schema: 1\npolicies: [a]\n", "2:12", "policies[0] is a single value", "- name"},
		"too many policies":     {"schema: 1\npolicies: [" + strings.Repeat("a,", 1001) + "]\n", "2:11", "1001 policies", "fewer"},
		"repeated field on top": {"schema: 1\nschema: 1\npolicies: []\n", "2:1", "schema stands twice (first on line 1)", "remove one"},
		"unknown field on top":  {"schema: 1\npolices: []\n", "2:1", "unknown field polices", "did you mean policies?"},
		"name twice":            {twice, "10:11", "the name p stands twice (first on line 3)", "name of its own"},
		"unknown field":         {policyWith("qqqq: 1"), "9:5", "unknown field qqqq", "the fields here are name, match"},
		"misspelt field":        {policyWith("brust: 200"), "9:5", "unknown field brust", "did you mean burst?"},
		"field of another kind": {policyWith("Rate: 1/s"), "9:5", "unknown field Rate", "did you mean rate?"},
		"repeated field":        {policyWith("owner: x\n    owner: y"), "10:5", "owner stands twice (first on line 9)", "remove one"},
		"field without value":   {policyWith("owner:"), "9:5", "owner has no value", "give it a value"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t) })
	}
}

func TestParseRefusesFields(t *testing.T) {
	for name, want := range map[string]refusal{
		"name missing":           {without("name"), "3:5", "name is missing", "api-per-user"},
		"key missing":            {without("key"), "3:5", "key is missing", "key: [user]"},
		"algorithm missing":      {without("algorithm"), "3:5", "algorithm is missing", "token_bucket"},
		"rate missing":           {without("rate"), "3:5", "rate is missing", "100/min"},
		"scope missing":          {without("scope"), "3:5", "scope is missing", "scope: global"},
		"on_failure missing":     {without("on_failure"), "3:5", "on_failure is missing", "{redis: closed, allocator: local}"},
		"name in capitals":       {policyWith("name: API"), "3:11", `has the character 'A'`, "abcdefghijklmnopqrstuvwxyz"},
		"name too long":          {policyWith("name: " + strings.Repeat("a", 65)), "3:11", "longer than 64", "1 to 64"},
		"name empty":             {policyWith("name: ''"), "3:11", "the name is empty", "1 to 64"},
		"name a list":            {policyWith("name: [a]"), "3:11", "name is a list", "1 to 64"},
		"algorithm misspelt":     {policyWith("algorithm: tokenbucket"), "5:16", "cannot be tokenbucket", "did you mean token_bucket?"},
		"algorithm unknown":      {policyWith("algorithm: gcra"), "5:16", "cannot be gcra", "write token_bucket"},
		"scope unknown":          {policyWith("scope: world"), "7:12", "scope cannot be world", "global or region"},
		"missing unknown":        {policyWith("missing: 401"), "9:14", "missing cannot be 401", "skip or deny"},
		"on_failure unknown":     {policyWith("on_failure: close"), "8:17", "on_failure cannot be close", "did you mean closed?"},
		"on_failure half":        {policyWith("on_failure: {redis: open}"), "8:17", "allocator is missing", "allocator: local"},
		"on_failure other half":  {policyWith("on_failure: {allocator: open}"), "8:17", "redis is missing", "redis: closed"},
		"allocator closed":       {policyWith("on_failure: {redis: open, allocator: closed}"), "8:42", "allocator cannot be closed", "local or open"},
		"on_failure more":        {policyWith("on_failure: {redis: open, allocator: open, nats: open}"), "8:48", "unknown field nats", "redis, allocator"},
		"enforce beyond whole":   {policyWith("enforce: 101%"), "9:14", "more than the whole", "share of keys"},
		"enforce a word":         {policyWith("enforce: true"), "9:14", "true is no percentage", "100%"},
		"lease_wait long":        {policyWith("lease_wait: 3s"), "9:17", "3s is too long", "0s to 2s"},
		"lease_wait negative":    {policyWith("lease_wait: -1s"), "9:17", "negative", "0s to 2s"},
		"lease_wait no unit":     {policyWith("lease_wait: 500"), "9:17", "500 is no duration", "500ms"},
		"allotment beyond whole": {policyWith("allotment: 100.1%"), "9:16", "more than the whole", "100%"},
		"allotment negative":     {policyWith("allotment: -1%"), "9:16", "-1% is no percentage", "10%"},
		"allotment no percent":   {policyWith("allotment: 0.1"), "9:16", "0.1 is no percentage", "10%"},
		"allotment too fine":     {policyWith("allotment: 1.00001%"), "9:16", "no percentage", "four decimals"},
		"owner two lines":        {policyWith("owner: \"a\\nb\""), "9:12", "more than one line", "one line"},
		"cost negative":          {policyWith("cost: -1"), "9:11", "-1 is negative", "from 1 to the capacity"},
		"cost nothing":           {policyWith("cost: 0"), "9:11", "charges nothing", "write 1 or more"},
		"max_delay global":       {policyWith("max_delay: 5s"), "9:5", "max_delay in scope global is not supported by this version yet", "scope: region"},
		"on_loss global":         {policyWith("on_loss: full"), "9:5", "scope region only", "always exact"},
		"ban global":             {policyWith("ban: {denials: 1, within: 1m, for: 1m}"), "9:5", "ban in scope global is not supported by this version yet", "scope: region"},
		"window":                 {policyWith("window: 1h"), "9:5", "window is not for token_bucket", "rate, burst and max_delay; or write algorithm: fixed_window"},
		"limit":                  {policyWith("limit: 10"), "9:5", "limit is not for token_bucket", "or concurrency"},
		"timezone":               {policyWith("timezone: Europe/Rome"), "9:5", "timezone is not for token_bucket", "algorithm: fixed_window"},
		"anchor":                 {policyWith("anchor: mon"), "9:5", "anchor is not for token_bucket", "algorithm: fixed_window"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}
