package policy

import (
	"strings"
	"testing"
)

// exempting is a good document with an exemption.
func exempting(entry string) string {
	return "schema: 1\nexempt: [" + entry + "]\n" + strings.TrimPrefix(policyWith("owner: x"), "schema: 1\n")
}

// keyed is a good policy with a key and one more line.
func keyed(key, line string) string {
	return strings.Replace(policyWith(line), "[user]", "["+key+"]", 1)
}

const hexKey = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestParseRefusesMatches(t *testing.T) {
	for name, want := range map[string]refusal{
		"host with port":            {policyWith("match: {hosts: [\"a.example:80\"]}"), "9:21", "a.example:80\" has a port", "leave the port out"},
		"host star":                 {policyWith("match: {hosts: [\"*\"]}"), "9:21", "* is no name", "leave hosts out"},
		"host star within":          {policyWith("match: {hosts: [\"a.*.example\"]}"), "9:21", "elsewhere than before the first dot", "*.example.com"},
		"host star of a word":       {policyWith("match: {hosts: [\"*example\"]}"), "9:21", "elsewhere than before the first dot", "*.example.com"},
		"host with last dot":        {policyWith("match: {hosts: [a.example.]}"), "9:21", "never matches", "last dot"},
		"host in another script":    {policyWith("match: {hosts: [bücher.example]}"), "9:21", "never matches", "xn--"},
		"host empty":                {policyWith("match: {hosts: [\"*.\"]}"), "9:21", "is no host's name", "api.example.com"},
		"host with two dots":        {policyWith("match: {hosts: [a..example]}"), "9:21", "is no host's name", "api.example.com"},
		"host twice":                {policyWith("match: {hosts: [a.b, a.b]}"), "9:26", "stands twice in hosts", "remove one"},
		"hosts a word":              {policyWith("match: {hosts: a.b}"), "9:20", "hosts is a single value", "[api.example.com"},
		"headers a list":            {policyWith("match: {headers: [X-A]}"), "9:22", "headers is a list", "{NAME: VALUE}"},
		"header name":               {policyWith("match: {headers: {\"X A\": y}}"), "9:23", "\"X A\" is no header's name", "X-Plan"},
		"header host":               {policyWith("match: {headers: {host: y}}"), "9:23", "not among a request's headers", "by hosts"},
		"header credential":         {policyWith("match: {headers: {authorization: \"Bearer abc\"}}"), "9:23", "holds credentials", "user or api_key"},
		"header twice":              {policyWith("match: {headers: {X-A: y, x-a: z}}"), "9:31", "X-A stands twice", "one list"},
		"header without value":      {policyWith("match: {headers: {X-A: }}"), "9:23", "X-A has no value", "give it a value"},
		"header without values":     {policyWith("match: {headers: {X-A: []}}"), "9:28", "X-A has no values", "* for any"},
		"header value empty":        {policyWith("match: {headers: {X-A: \"\"}}"), "9:28", "never matches", "1 to 256"},
		"header value control":      {policyWith("match: {headers: {X-A: \"a\\tb\"}}"), "9:28", "control character", "printable"},
		"header value long":         {policyWith("match: {headers: {X-A: " + strings.Repeat("a", 257) + "}}"), "9:28", "longer than 256", "1 to 256"},
		"header value a mapping":    {policyWith("match: {headers: {X-A: {b: c}}}"), "9:28", "X-A is a mapping", "{NAME: VALUE}"},
		"header any and one":        {policyWith("match: {headers: {X-A: [b, \"*\"]}}"), "9:32", "makes the other entries of X-A idle", "alone"},
		"too many headers":          {policyWith("match: {headers: {" + strings.Repeat("a: b, ", 17) + "}}"), "9:22", "17 names", "split"},
		"query name empty":          {policyWith("match: {query: {\"\": y}}"), "9:21", "is no name of a query parameter", "plan"},
		"claim name empty":          {policyWith("match: {claims: {\"\": y}}"), "9:22", "is no claim's name", "org"},
		"claims a list":             {policyWith("match: {claims: [org]}"), "9:21", "claims is a list", "{NAME: VALUE}"},
		"tier name":                 {policyWith("match: {tiers: [\"a b\"]}"), "9:21", "has the character ' '", "1 to 64"},
		"region name":               {policyWith("match: {regions: [EU]}"), "9:23", "has the character 'E'", "1 to 64"},
		"key header name":           {policyWith("key: [\"header:X A\"]"), "4:11", "is no header's name", "X-Plan"},
		"key header none":           {policyWith("key: [\"header:\"]"), "4:11", "is no header's name", "X-Plan"},
		"key header credential":     {policyWith("key: [\"header:Authorization\"]"), "4:11", "holds credentials", "user or api_key"},
		"key query none":            {policyWith("key: [\"query:\"]"), "4:11", "is no name of a query parameter", "plan"},
		"key claim none":            {policyWith("key: [\"claim:\"]"), "4:11", "is no claim's name", "org"},
		"anonymous without user":    {policyWith("match: {tiers: [anonymous]}"), "9:20", "never applies: a client of tier anonymous has no user", "missing: deny"},
		"anonymous without claim":   {keyed("\"claim:org\"", "match: {tiers: [anonymous]}"), "9:20", "never applies", "key by ip"},
		"anonymous with claims":     {keyed("ip", "match: {tiers: [anonymous], claims: {org: a}}"), "9:20", "has no claims", "remove claims"},
		"exempt tiers only":         {strings.Replace(policyWith("match: {tiers: [gold]}"), "policies", "exempt: [{tier: gold}]\npolicies", 1), "10:20", "every tier that it matches is exempt", "remove the exemption"},
		"exempt everyone":           {exempting("{}"), "2:10", "exempts everyone", "say whom"},
		"exempt a word":             {exempting("monitor"), "2:10", "exempt[0] is a single value", "{user: NAME}"},
		"exempt unknown field":      {exempting("{usr: a}"), "2:11", "unknown field usr", "did you mean user?"},
		"exempt a claim in braces":  {exempting("{claim:org: a}"), "2:11", "claim has no name", "in quotes"},
		"exempt a header":           {exempting("{\"header:X\": a}"), "2:11", "unknown field", "user, api_key, ip, tier"},
		"exempt no network":         {exempting("{ip: 10.0.0.0/33}"), "2:15", "is no network", "10.0.0.0/8"},
		"exempt bits beyond":        {exempting("{ip: 10.0.0.1/8}"), "2:15", "bits beyond its length", "write 10.0.0.0/8"},
		"exempt mapped network":     {exempting("{ip: \"::ffff:10.0.0.0/104\"}"), "2:15", "never matches", "IPv4 network"},
		"exempt zone":               {exempting("{ip: \"fe80::1%eth0\"}"), "2:15", "is no network", "one address"},
		"exempt a key in clear":     {exempting("{api_key: s3cret}"), "2:20", "this api_key is no SHA-256", "never the key itself"},
		"exempt user empty":         {exempting("{user: \"\"}"), "2:17", "never matches", "1 to 256"},
		"exempt a mapping":          {strings.Replace(exempting("x"), "[x]", "{ip: 10.0.0.0/8}", 1), "2:9", "exempt is a mapping", "[{ip: 10.0.0.0/8}"},
		"too many exempt":           {exempting(strings.Repeat("{user: a}, ", 257)), "2:9", "257 exemptions", "a network or a tier"},
		"enforce negative":          {policyWith("enforce: -1%"), "9:14", "-1% is no percentage", "share of keys"},
		"on_loss of another kind":   {strings.Replace(policyWith("on_loss: half"), "global", "region", 1), "9:14", "on_loss cannot be half", "full or empty"},
		"match regions of one word": {policyWith("match: {regions: eu}"), "9:22", "regions is a single value", "[eu, us]"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

func TestParseRefusesCosts(t *testing.T) {
	for name, want := range map[string]refusal{
		"cost a list":              {policyWith("cost: [5]"), "9:11", "cost is a list", "{default: 1"},
		"cost fraction":            {policyWith("cost: 1.5"), "9:11", "no whole number", "from 1"},
		"cost above capacity":      {policyWith("cost: 101"), "9:11", "the cost 101 is above the capacity, 100: such a request never fits", "raise burst to 101"},
		"cost above a tier's":      {policyWith("tiers: {free: {rate: 2/s}}\n    cost: 3"), "10:11", "above the capacity of tier free, 2", "raise burst to 3"},
		"cost above an override's": {policyWith("overrides: [{key: {user: a}, rate: 2/s}]\n    cost: 3"), "10:11", "above the capacity of the override of user=a, 2", "raise burst to 3"},
		"cost rule above":          {policyWith("cost: {rules: [{methods: [POST], cost: 101}]}"), "9:44", "the cost 101 is above", "lower the cost"},
		"cost default above":       {policyWith("cost: {default: 101}"), "9:21", "the cost 101 is above", "lower the cost"},
		"cost max above":           {policyWith("cost: {header: X-Cost, max: 101}"), "9:33", "the cost 101 is above", "lower the cost"},
		"cost unknown field":       {policyWith("cost: {defaut: 2}"), "9:12", "unknown field defaut", "did you mean default?"},
		"cost default nothing":     {policyWith("cost: {default: 0}"), "9:21", "charges nothing", "exempt"},
		"cost rule a number":       {policyWith("cost: {rules: [5]}"), "9:20", "rules[0] is a single value", "{methods: [POST]"},
		"cost rules a mapping":     {policyWith("cost: {rules: {cost: 5}}"), "9:19", "rules is a mapping", "rules: [{methods"},
		"cost rule without cost":   {policyWith("cost: {rules: [{methods: [POST]}]}"), "9:20", "cost is missing", "write cost:"},
		"cost rule method":         {policyWith("cost: {rules: [{methods: [post], cost: 5}]}"), "9:31", "never matches", "write POST"},
		"cost rule path":           {policyWith("cost: {rules: [{paths: [v1], cost: 5}]}"), "9:29", "does not begin with a slash", "/v1/*"},
		"cost rule negative":       {policyWith("cost: {rules: [{cost: -5}]}"), "9:27", "-5 is negative", "from 1"},
		"cost header without max":  {policyWith("cost: {header: X-Cost}"), "9:11", "max is missing", "largest cost"},
		"cost header name":         {policyWith("cost: {header: \"X Cost\", max: 5}"), "9:20", "is no header's name", "X-Plan"},
		"cost header a list":       {policyWith("cost: {header: [X-Cost], max: 5}"), "9:20", "header is a list", "X-Plan"},
		"cost actual":              {policyWith("cost: {actual: X-Actual-Cost}"), "9:12", "actual in scope global is not supported by this version yet", "scope: region"},
		"cost refund":              {policyWith("cost: {refund: [502]}"), "9:12", "refund in scope global is not supported by this version yet", "scope: region"},
		"too many cost rules":      {policyWith("cost: {rules: [" + strings.Repeat("{cost: 5}, ", 101) + "]}"), "9:19", "101 cost rules", "split"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

func TestParseRefusesOverrides(t *testing.T) {
	for name, want := range map[string]refusal{
		"overrides a mapping":      {policyWith("overrides: {key: {}}"), "9:16", "overrides is a mapping", "{key: {user: NAME}"},
		"override a word":          {policyWith("overrides: [acme]"), "9:17", "overrides[0] is a single value", "{key: {user: NAME}"},
		"override without key":     {policyWith("overrides: [{rate: 1/s}]"), "9:17", "key is missing", "key: {} for everyone"},
		"override without rate":    {policyWith("overrides: [{key: {user: a}}]"), "9:17", "rate is missing", "100/min"},
		"override key a word":      {policyWith("overrides: [{key: user, rate: 1/s}]"), "9:23", "key is a single value", "{user: NAME}"},
		"override key not ours":    {policyWith("overrides: [{key: {ip: 10.0.0.0/8}, rate: 1/s}]"), "9:23", "the override is for one ip, but the policy's key is [user]", "add ip to the policy's key"},
		"override of a claim":      {policyWith("overrides: [{key: {\"claim:org\": a}, rate: 1/s}]"), "9:23", "for one \"claim:org\"", "a policy of its own"},
		"override ends first":      {policyWith("overrides: [{key: {user: a}, rate: 1/s, from: 2026-02-01T00:00:00Z, until: 2026-01-01T00:00:00Z}]"), "9:80", "ends before it begins", "until after from"},
		"override of no time":      {policyWith("overrides: [{key: {user: a}, rate: 1/s, from: 2026-02-01T00:00:00Z, until: 2026-02-01T00:00:00Z}]"), "9:80", "ends before it begins", "until after from"},
		"override from a date":     {policyWith("overrides: [{key: {user: a}, rate: 1/s, from: 2026-02-01}]"), "9:51", "is no instant", "a zone"},
		"override without a zone":  {policyWith("overrides: [{key: {user: a}, rate: 1/s, until: \"2026-02-01T00:00:00\"}]"), "9:52", "is no instant", "a zone"},
		"override until never":     {policyWith("overrides: [{key: {user: a}, rate: 1/s, until: never}]"), "9:52", "never is no instant", "a zone"},
		"override twice":           {policyWith("overrides: [{key: {user: a}, rate: 1/s}, {key: {user: a}, rate: 2/s}]"), "9:46", "an override of user=a for the same time already, on line 9", "remove one"},
		"override burst beside 0":  {policyWith("overrides: [{key: {user: a}, rate: 0/s, burst: 5}]"), "9:52", "denies all, but burst is 5", "burst: 0"},
		"override unknown field":   {policyWith("overrides: [{key: {user: a}, rate: 1/s, untl: 2026-02-01T00:00:00Z}]"), "9:45", "unknown field untl", "did you mean until?"},
		"override a key in clear":  {keyed("api_key", "overrides: [{key: {api_key: s3cret}, rate: 1/s}]"), "9:33", "this api_key is no SHA-256", "never the key itself"},
		"too many overrides":       {policyWith("overrides: [" + strings.Repeat("a, ", 101) + "]"), "9:16", "101 overrides", "tiers"},
		"override claim twice":     {keyed("\"claim:o\"", "overrides: [{key: {\"claim:o\": a, \"claim:o\": b}, rate: 1/s}]"), "9:38", "stands twice", "remove one"},
		"override of an empty tag": {policyWith("overrides: [{key: {tier: \"\"}, rate: 1/s}]"), "9:30", "the name is empty", "1 to 64"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}
