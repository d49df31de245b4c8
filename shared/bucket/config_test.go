package bucket_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
)

// load reads a section redis of a role's file.
func load(t *testing.T, yaml string, environ ...string) (bucket.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(path, []byte("redis: "+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	var role struct {
		Redis bucket.Config `yaml:"redis"`
	}
	err := config.Load(path, environ, &role)
	return role.Redis, err
}

// TestOpenRefusesWhatCanNeverWork lists the configurations that no waiting makes good; each is told with its field and a remedy.
func TestOpenRefusesWhatCanNeverWork(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for what, row := range map[string]struct{ yaml, want string }{
		"an unknown mode":         {"{mode: foo, addrs: ['a:1']}", `redis.mode "foo": write single, cluster or sentinel`},
		"no server":               {"{mode: single}", "redis.addrs: give the region's Redis"},
		"no port":                 {"{addrs: [foo]}", `redis.addrs: "foo" is no HOST:PORT`},
		"no host":                 {"{addrs: [':6379']}", `redis.addrs: ":6379" is no HOST:PORT`},
		"a port that is none":     {"{addrs: ['a:70000']}", `redis.addrs: "a:70000" is no HOST:PORT`},
		"a URL":                   {"{addrs: ['redis://a:6379']}", `redis.addrs: "redis://a:6379" is no HOST:PORT`},
		"two single servers":      {"{addrs: ['a:1', 'b:1']}", "give one, or set redis.mode to cluster or sentinel"},
		"a server twice":          {"{mode: cluster, addrs: ['a:1', 'a:1']}", `"a:1" stands twice; remove one`},
		"sentinel without master": {"{mode: sentinel, addrs: ['a:1']}", "redis.master: name the master"},
		"master with single":      {"{addrs: ['a:1'], master: m}", "redis.master is for mode sentinel"},
		"master with cluster":     {"{mode: cluster, addrs: ['a:1'], master: m}", "redis.master is for mode sentinel"},
		"sentinels' password":     {"{addrs: ['a:1'], sentinel_password_file: f}", "are for mode sentinel"},
		"a user without password": {"{addrs: ['a:1'], username: u}", "name its file in redis.password_file"},
		"no password file":        {"{addrs: ['a:1'], password_file: " + missing + "}", "redis.password_file: open "},
		"no password in it":       {"{addrs: ['a:1'], password_file: " + empty + "}", "is empty; write the password into it"},
		"a negative timeout":      {"{addrs: ['a:1'], timeout: -1s}", "redis.timeout -1s: give more than 0"},
		"a long timeout":          {"{addrs: ['a:1'], timeout: 2m}", "redis.timeout 2m0s: give more than 0, at most 1m0s"},
		"a negative pool":         {"{addrs: ['a:1'], pool_size: -1}", "redis.pool_size -1: give 1 to 10000"},
		"a huge pool":             {"{addrs: ['a:1'], pool_size: 10001}", "redis.pool_size 10001: give 1 to 10000"},
		"half a certificate":      {"{addrs: ['a:1'], tls: {cert: c}}", "redis.tls: cert and key go together"},
		"an unknown TLS field":    {"{addrs: ['a:1'], tls: {caa: c}}", "caa is unknown; known here: ca, cert, key, server_name"},
		"a word for TLS":          {"{addrs: ['a:1'], tls: yes}", "write true, false, or {ca: FILE"},
		"no CA file":              {"{addrs: ['a:1'], tls: {ca: " + missing + "}}", "redis.tls.ca: open "},
		"no CA in it":             {"{addrs: ['a:1'], tls: {ca: " + empty + "}}", "has no certificate; give one in PEM"},
		"no key file":             {"{addrs: ['a:1'], tls: {cert: " + missing + ", key: " + missing + "}}", "redis.tls: cert "},
	} {
		cfg, err := load(t, row.yaml)
		if err == nil {
			var store *bucket.Store
			if store, err = bucket.Open(cfg); err == nil {
				_ = store.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: Open(%s) = %v, want an error that says %q", what, row.yaml, err, row.want)
		}
	}
	_, err := load(t, "{mode: foo, addrs: [a], timeout: 2m}")
	if err != nil {
		t.Fatal(err)
	}
	all := bucket.Config{Mode: "foo", Addrs: []string{"a"}, Timeout: 2 * time.Minute}.Validate()
	for _, want := range []string{"mode", "addrs", "timeout"} {
		if !strings.Contains(all.Error(), "redis."+want) {
			t.Errorf("Validate = %v, which leaves %s out", all, want)
		}
	}
}

// TestConfigIsRead: every field of a role's section redis, from its file and from the environment.
func TestConfigIsRead(t *testing.T) {
	got, err := load(t, "{mode: sentinel, addrs: ['a:1', 'b:2'], username: u, password_file: p, tls: {ca: c, server_name: n}, "+
		"master: m, sentinel_username: v, sentinel_password_file: q, pool_size: 3, timeout: 20ms}", "ANNONA_REDIS_POOL_SIZE=4")
	if err = errors.Join(err, got.Validate()); err != nil {
		t.Fatal(err)
	}
	if got.Mode != "sentinel" || len(got.Addrs) != 2 || got.Username != "u" || got.PasswordFile != "p" || got.Master != "m" ||
		got.SentinelUsername != "v" || got.SentinelPasswordFile != "q" || got.PoolSize != 4 || got.Timeout != 20*time.Millisecond ||
		got.TLS != (bucket.TLS{On: true, CA: "c", ServerName: "n"}) {
		t.Errorf("read %+v", got)
	}
	for text, want := range map[string]bucket.TLS{"true": {On: true}, "false": {}, "{ca: other}": {On: true, CA: "other"}} {
		got, err := load(t, "{addrs: ['a:1'], tls: {ca: c}}", "ANNONA_REDIS_TLS="+text)
		if err != nil || got.TLS != want {
			t.Errorf("ANNONA_REDIS_TLS=%s: %+v, %v, want %+v", text, got.TLS, err, want)
		}
	}
}
