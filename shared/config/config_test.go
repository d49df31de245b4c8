package config_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/config"
)

// redis, route and role stand for the shapes that roles' configurations have.
type redis struct {
	Mode     string        `yaml:"mode"`
	Addrs    []string      `yaml:"addrs"`
	Timeout  time.Duration `yaml:"timeout"`
	PoolSize int           `yaml:"pool_size"`
	ServerID string        `yaml:"-"`
}

type files struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

type route struct {
	Name    string            `yaml:"name"`
	Forward map[string]string `yaml:"forward"`
	MaxBody config.Bytes      `yaml:"max_body"`
}

type common struct {
	Admin string `yaml:"admin"`
}

type role struct {
	Common common `yaml:",inline"`

	Region  string           `yaml:"region"`
	Redis   redis            `yaml:"redis"`
	TLS     *files           `yaml:"tls"`
	Routes  []route          `yaml:"routes"`
	Jitter  config.Percent   `yaml:"retry_jitter"`
	Trusted []netip.Prefix   `yaml:"trusted"`
	Sample  float64          `yaml:"sample"`
	Weight  uint64           `yaml:"weight"`
	Reset   *bool            `yaml:"reset"`
	Groups  map[string][]int `yaml:"groups"`
	Shards  int
}

func defaults() role {
	return role{Region: "none", Redis: redis{Mode: "single", Addrs: []string{"default:1"}, Timeout: time.Second, ServerID: "s"}}
}

func load(t *testing.T, yaml string, environ ...string) (role, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	into := defaults()
	err := config.Load(path, environ, &into)
	if err != nil {
		if !errors.Is(err, config.ErrUsage) {
			t.Errorf("Load(%q) = %v, which does not wrap ErrUsage", yaml, err)
		}
		if diff := cmp.Diff(defaults(), into); diff != "" {
			t.Errorf("Load(%q) failed and changed the target:\n%s", yaml, diff)
		}
		err = errors.New(strings.ReplaceAll(err.Error(), path, "role.yaml"))
	}
	return into, err
}

func TestAFileIsReadOverTheDefaults(t *testing.T) {
	t.Parallel()
	got, err := load(t, `
admin: ":1"
region: eu
redis: {timeout: 50ms, pool_size: 7}
tls: {cert: c}
routes:
  - {name: api, forward: {user: X-User-Id}, max_body: 10MiB}
retry_jitter: 10%
trusted: ["10.0.0.0/8"]
sample: 1
weight: 3
reset: true
groups: {a: [1]}
shards: 32
`)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Common.Admin, want.Region, want.Redis.Timeout, want.Redis.PoolSize = ":1", "eu", 50*time.Millisecond, 7
	want.TLS, want.Jitter, want.Sample, want.Weight, want.Shards = &files{Cert: "c"}, 0.1, 1, 3, 32
	want.Routes = []route{{Name: "api", Forward: map[string]string{"user": "X-User-Id"}, MaxBody: 10 << 20}}
	want.Trusted, want.Reset = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, new(true)
	want.Groups = map[string][]int{"a": {1}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

func TestNothingWrittenKeepsTheDefaults(t *testing.T) {
	t.Parallel()
	for _, yaml := range []string{"", "\n", "# a comment\n", "---\n", "redis:\n", "redis: {addrs: }\n", "null\n"} {
		got, err := load(t, yaml)
		if diff := cmp.Diff(defaults(), got); err != nil || diff != "" {
			t.Errorf("Load(%q) = %v\n%s", yaml, err, diff)
		}
	}
}

func TestEveryMistakeIsNamedWithItsPlaceAndCure(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		yaml string
		want []string
	}{
		"unknown names": {"redis:\n  tiemout: 5s\nrejion: eu\n", []string{
			"role.yaml:2:3: redis.tiemout is unknown; known here: addrs, mode, pool_size, timeout",
			"role.yaml:3:1: rejion is unknown; known here: admin, groups, redis, region, ",
		}},
		"an unknown name in a list":  {"routes: [{name: a}, {naem: b}]", []string{"role.yaml:1:22: routes[1].naem is unknown; known here: "}},
		"a field that is no setting": {"redis: {serverid: x}", []string{"redis.serverid is unknown"}},
		"a bare number as duration":  {"redis: {timeout: 50}", []string{"role.yaml:1:18: redis.timeout does not fit; write a duration"}},
		"half a whole number":        {"redis: {pool_size: 1.5}", []string{"redis.pool_size does not fit; write a whole number"}},
		"a number out of range":      {"shards: 99999999999999999999", []string{"shards does not fit; write a whole number"}},
		"a negative weight":          {"weight: -1", []string{"weight does not fit; write a whole number, not negative"}},
		"text for a number":          {"sample: much", []string{"sample does not fit; write a number"}},
		"yes for true":               {"reset: yes", []string{"reset does not fit; write true or false"}},
		"text for a list":            {"redis: {addrs: a}", []string{"role.yaml:1:16: redis.addrs does not fit; write a list"}},
		"a list for a text":          {"region: [a]", []string{"region does not fit; write one text"}},
		"a list for a section":       {"redis: [a]", []string{"redis does not fit; write a mapping"}},
		"a text for the whole":       {"eu", []string{"role.yaml:1:1: this does not fit; write a mapping"}},
		"a share without unit":       {"retry_jitter: 10", []string{"role.yaml:1:15: retry_jitter: write a share from 0% to 100%"}},
		"one bad address of two":     {"trusted: [10.0.0.0/8, 10.0.0.1]", []string{"role.yaml:1:23: trusted[1]: netip.ParsePrefix"}},
		"a name twice":               {"region: eu\nregion: us", []string{"role.yaml:2:1: mapping key \"region\" already defined"}},
		"broken YAML":                {"region: [", []string{"role.yaml:1:9: ", "mend the YAML"}},
		"two documents":              {"region: eu\n---\nregion: us\n", []string{"a second document; keep one in a file"}},
		"an alias":                   {"region: &r eu\nadmin: *r", []string{"role.yaml:1:9: anchors, aliases", "role.yaml:2:8: anchors, aliases"}},
		"a merge key":                {"<<: {region: eu}", []string{"role.yaml:1:1: anchors, aliases, merge keys and tags are not read here"}},
	} {
		_, err := load(t, row.yaml)
		if err == nil {
			t.Errorf("%s: Load(%q) = nil", name, row.yaml)
			continue
		}
		for _, want := range row.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Load(%q) = %v, want it to say %q", name, row.yaml, err, want)
			}
		}
	}
}

func TestAFileThatCannotBeReadIsAMistakeOfUse(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), "long.yaml")
	if err := os.WriteFile(long, bytes.Repeat([]byte("#"), 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{long, t.TempDir(), filepath.Join(t.TempDir(), "missing.yaml")} {
		var into role
		if err := config.Load(path, nil, &into); !errors.Is(err, config.ErrUsage) || !strings.Contains(err.Error(), path) {
			t.Errorf("Load(%s) = %v, want ErrUsage with the path", path, err)
		}
	}
}
