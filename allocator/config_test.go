package allocator_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/policy"
)

func goodConfig() allocator.Config {
	c := allocator.DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.Regions = []policy.Region{{Name: "eu", Weight: 1}, {Name: "us", Weight: 2}}
	c.Credentials = []admin.Credential{admin.NewCredential("olga", admin.Operator, token)}
	c.Secret = []byte("0123456789abcdef")
	c.Policies = []byte(document)
	return c
}

func TestValidateSaysEverythingAtOnce(t *testing.T) {
	if err := goodConfig().Validate(); err != nil {
		t.Fatalf("a good configuration: %v", err)
	}
	bad := allocator.Config{Listen: "nowhere", NewKeysPerS: -1, Regions: []policy.Region{{Name: "EU", Weight: 0}}}
	bad.NATS.Replicas = 9
	bad.Telemetry.Sample = 2
	bad.Shards = -1
	bad.Times.TTL = time.Hour
	err := bad.Validate()
	for _, want := range []string{"listen", "new_keys_per_s", "EU", "weight", "nats.urls", "nats.replicas", "telemetry.sample", "shards", "times", "credentials", "hash_secret_file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
}

func TestOffLoopbackNeedsTLSOrInsecure(t *testing.T) {
	for listen, loopback := range map[string]bool{
		"127.0.0.1:7070": true, "[::1]:7070": true, "localhost:7070": true, "127.9.9.9:1": true,
		":7070": false, "0.0.0.0:7070": false, "[::]:7070": false, "192.0.2.1:7070": false, "example.com:7070": false,
	} {
		c := goodConfig()
		c.Listen = listen
		if err := c.Validate(); (err == nil) != loopback {
			t.Errorf("%s in clear: %v, want refused: %v", listen, err, !loopback)
		}
		c.Insecure = true
		if err := c.Validate(); err != nil {
			t.Errorf("%s insecure: %v", listen, err)
		}
		c.Insecure, c.TLS = false, allocator.TLS{Cert: "c", Key: "k"}
		if err := c.Validate(); err != nil {
			t.Errorf("%s with TLS: %v", listen, err)
		}
		c.TLS.Key = ""
		if err := c.Validate(); err == nil {
			t.Errorf("%s with half of TLS: accepted", listen)
		}
	}
}

func TestTheFileOfTheDesignIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allocator.yaml")
	const text = `
listen: "127.0.0.1:7070"
nats: {urls: ["nats://127.0.0.1:4222"], credentials: nats.creds, replicas: 3}
regions: [{name: eu, weight: 1}, {name: us, weight: 2}]
shards: 16
times: {contact: 2s, ttl: 20s}
new_keys_per_s: 100
tls: {cert: c.pem, key: k.pem}
policies: policies.yaml
credentials: credentials.yaml
hash_secret_file: secret
telemetry: {otlp: "http://127.0.0.1:4318", sample: 0.01}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := allocator.DefaultConfig()
	if err := config.Load(path, []string{"ANNONA_NATS_REPLICAS=1"}, &c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if c.Times.TTL != 20*time.Second || c.Times.DriftPPM != 10_000 || c.Shards != 16 || c.NATS.Replicas != 1 || len(c.Regions) != 2 ||
		c.PoliciesFile != "policies.yaml" || c.TLS.Key != "k.pem" || c.HashSecretFile != "secret" || c.NewKeysPerS != 100 {
		t.Errorf("read %+v", c)
	}
}

// Every file is read before anything is begun, and everything wrong with them is said at once.
func TestOpenChecksTheFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := goodConfig()
	c.PoliciesFile = write("policies.yaml", "schema: 1\nnothing: here\n")
	c.CredentialsFile = write("credentials.yaml", "- {name: n, role: viewer, sha256: hunter2}\n")
	c.HashSecretFile = write("secret", "  short \n")
	c.TLS = allocator.TLS{Cert: filepath.Join(dir, "missing.pem"), Key: filepath.Join(dir, "missing.key")}
	a, err := allocator.Open(t.Context(), c, startTelemetry(t, nil))
	if err == nil {
		t.Fatal(a.Close(), "bad files were accepted")
	}
	for _, want := range []string{"policies.yaml", "2:1", "credentials.yaml", "sha256", "hash secret", "missing.pem"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
	if !errors.Is(err, config.ErrUsage) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v, want one of usage that does not quote what may be a token", err)
	}
}

func TestCommandRefusesABadConfiguration(t *testing.T) {
	cmd := allocator.Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"--config", filepath.Join(t.TempDir(), "none.yaml")})
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, config.ErrUsage) {
		t.Errorf("a missing file: %v, want bad usage", err)
	}
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte("listen: \":7070\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.SetArgs([]string{"--config", path, "--init"})
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, config.ErrUsage) || !strings.Contains(err.Error(), "reachable from other machines") {
		t.Errorf("off loopback in clear: %v", err)
	}
}
