// Package compose_test keeps docker-compose.yml and the files that it mounts in step with the roles that read them.
package compose_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/gateway"
	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/region"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const root = "../.."

// service is what these tests read of a service.
type service struct {
	Image       string            `yaml:"image"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Secrets     []string          `yaml:"secrets"`
	Networks    any               `yaml:"networks"`
	Ports       []string          `yaml:"ports"`
}

// networks returns the names of a service's networks, which may be a list or a mapping.
func (s service) networks(t *testing.T) []string {
	t.Helper()
	var names []string
	switch networks := s.Networks.(type) {
	case []any:
		for _, name := range networks {
			names = append(names, name.(string)) //nolint:forcetypeassert // a panic is a failure as good as any
		}
	case map[string]any:
		for name := range networks {
			names = append(names, name)
		}
	default:
		t.Fatalf("networks are a %T", networks)
	}
	return names
}

// mounted returns the file of this tree that a container's path stands for, "" if none does.
func (s service) mounted(inside string) string {
	for _, volume := range s.Volumes {
		parts := strings.Split(volume, ":")
		if len(parts) >= 2 && parts[1] == inside {
			return filepath.Join(root, parts[0])
		}
	}
	return ""
}

// environ returns the service's environment, and one variable that every role reads.
func (s service) environ() []string {
	environ := []string{"ANNONA_TELEMETRY_SAMPLE=0.5"}
	for name, value := range s.Environment {
		environ = append(environ, name+"="+value)
	}
	return environ
}

func services(t *testing.T) map[string]service {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]service `yaml:"services"`
	}
	if err := yaml.Unmarshal(source, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services) < 12 {
		t.Fatalf("%d services, want three regions, NATS, an allocator and an upstream", len(file.Services))
	}
	return file.Services
}

// load reads a role's configuration as its container would and returns the files that it names.
func load(role, path string, environ []string) (files []string, err error) {
	switch role {
	case "gateway":
		cfg := gateway.Defaults()
		if err := config.Load(path, environ, &cfg); err != nil {
			return nil, err
		}
		return []string{cfg.Identity.APIKeys.File, cfg.Identity.HashSecretFile, cfg.Policies}, cfg.Validate()
	case "region":
		cfg := region.Defaults()
		if err := config.Load(path, environ, &cfg); err != nil {
			return nil, err
		}
		return nil, cfg.Validate()
	default:
		cfg := allocator.DefaultConfig()
		if err := config.Load(path, environ, &cfg); err != nil {
			return nil, err
		}
		return []string{cfg.CredentialsFile, cfg.HashSecretFile, cfg.PoliciesFile}, cfg.Validate()
	}
}

func TestEveryRoleTakesItsConfiguration(t *testing.T) {
	t.Parallel()
	roles := map[string]int{}
	for name, s := range services(t) {
		if s.Image != "annona:local" {
			continue
		}
		if len(s.Command) != 3 || s.Command[1] != "--config" {
			t.Errorf("%s: command %v, want ROLE --config FILE", name, s.Command)
			continue
		}
		roles[s.Command[0]]++
		files, err := load(s.Command[0], s.mounted(s.Command[2]), s.environ())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, file := range files {
			secret, isSecret := strings.CutPrefix(file, "/run/secrets/")
			if isSecret && slices.Contains(s.Secrets, secret) {
				continue
			}
			if _, err := os.Stat(s.mounted(file)); err != nil {
				t.Errorf("%s: its configuration names %s, which its container has not: %v", name, file, err)
			}
		}
	}
	if roles["gateway"] != 3 || roles["region"] != 3 || roles["allocator"] != 1 {
		t.Errorf("roles %v, want 3 gateways, 3 agents (region), 1 allocator", roles)
	}
}

func TestTheRegionsAreTheAllocators(t *testing.T) {
	t.Parallel()
	cfg := allocator.DefaultConfig()
	if err := config.Load("allocator.yaml", nil, &cfg); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, r := range cfg.Regions {
		want = append(want, r.Name)
	}
	for _, s := range services(t) {
		if s.Image == "annona:local" && s.Command[0] == "region" {
			got = append(got, s.Environment["ANNONA_REGION"])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("agents of %v, want the allocator's %v", got, want)
	}
}

func TestThePoliciesAreGood(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	document, problems := policy.Parse(source)
	if document == nil || len(problems) > 0 {
		t.Errorf("policies.yaml: %+v", problems)
	}
}

func TestAGatewayCannotReachNATSNorAnotherRegionsRedis(t *testing.T) {
	t.Parallel()
	all := services(t)
	for name, s := range all {
		if !strings.HasPrefix(name, "gateway-") {
			continue
		}
		region := s.Environment["ANNONA_REGION"]
		for other, o := range all {
			forbidden := other == "nats" || strings.HasPrefix(other, "redis-") && other != "redis-"+region
			for _, network := range s.networks(t) {
				if forbidden && slices.Contains(o.networks(t), network) {
					t.Errorf("%s reaches %s over network %s", name, other, network)
				}
			}
		}
	}
}

func TestPortsArePublishedOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for name, s := range services(t) {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s, want 127.0.0.1 only", name, port)
			}
		}
	}
}

func TestTheSecretsAreWhatTheRolesRead(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("secrets.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "secrets.sh")
	if err := os.WriteFile(path, script, 0o600); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 { // the second run changes nothing
		if out, err := exec.CommandContext(t.Context(), "bash", path).CombinedOutput(); err != nil {
			t.Fatalf("secrets.sh: %v\n%s", err, out)
		}
		secret, err := os.ReadFile(filepath.Join(dir, "secrets", "hash_secret"))
		if err != nil || len(secret) < limit.MinSecret || (first != nil && string(first) != string(secret)) {
			t.Fatalf("hash_secret: %d bytes, %v, want a secret that stays", len(secret), err)
		}
		first = secret
	}
	if _, err := identity.Load(filepath.Join(dir, "secrets", "api_keys")); err != nil {
		t.Errorf("api_keys: %v", err)
	}
	credentials, err := os.ReadFile(filepath.Join(dir, "secrets", "credentials"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ParseCredentials(credentials); err != nil {
		t.Errorf("credentials: %v", err)
	}
}

func TestNATSSyncsBeforeItAcknowledges(t *testing.T) {
	t.Parallel()
	options, err := server.ProcessConfigFile("../nats/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !options.JetStream || !options.SyncAlways || options.StoreDir != "/data/jetstream" {
		t.Errorf("jetstream %v, sync always %v, store %s", options.JetStream, options.SyncAlways, options.StoreDir)
	}
}

func TestRedisNeverEvicts(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../redis/redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(source), "\n"), "maxmemory-policy noeviction") {
		t.Error("redis.conf lacks maxmemory-policy noeviction")
	}
}
