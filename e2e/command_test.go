package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What scripts and service managers see: 0 good, 2 wrong usage or configuration, 1 anything else; the complaint says what to do.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const policies = "schema: 1\npolicies:\n  - {name: p, key: %s, algorithm: token_bucket, rate: 1/s, scope: region, on_failure: closed}\n"
	gateway := func(listen, more string) string {
		return fmt.Sprintf("region: eu\nlisten: %q\nadmin: \"127.0.0.1:0\"\nredis: {addrs: [\"127.0.0.1:1\"]}\n"+
			"routes: [{name: api, upstreams: [\"http://127.0.0.1:1\"]}]\nidentity: {hash_secret_file: %q}\n%s", listen, file("secret", "sixteen bytes at least"), more)
	}
	good, warned := file("good.yaml", fmt.Sprintf(policies, "[user]")), file("warned.yaml", fmt.Sprintf(policies, `["header:X-A"]`))
	for name, row := range map[string]struct {
		args []string
		want int
		says string
	}{
		"help":                    {[]string{"--help"}, 0, ""},
		"version":                 {[]string{"version"}, 0, ""},
		"unknown command":         {[]string{"gatway"}, 2, "unknown command"},
		"unknown flag":            {[]string{"gateway", "--confg", "x"}, 2, "unknown flag"},
		"argument too many":       {[]string{"version", "x"}, 2, "unknown command"},
		"gateway without config":  {[]string{"gateway"}, 2, "config"},
		"region without config":   {[]string{"region"}, 2, "config"},
		"allocator without one":   {[]string{"allocator"}, 2, "config"},
		"config that is missing":  {[]string{"gateway", "--config", filepath.Join(dir, "none.yaml")}, 2, "none.yaml"},
		"config with a misprint":  {[]string{"gateway", "--config", file("a.yaml", gateway("127.0.0.1:0", "acess_log: off\n"))}, 2, "acess_log"},
		"config that cannot work": {[]string{"gateway", "--config", file("b.yaml", gateway("nowhere", ""))}, 2, "HOST:PORT"},
		"a policy that is wrong":  {[]string{"gateway", "--config", file("c.yaml", gateway("127.0.0.1:0", "policies: "+file("bad.yaml", "schema: 2\n")+"\n"))}, 2, "schema"},
		"a port that is taken":    {[]string{"gateway", "--config", file("d.yaml", gateway(taken.Addr().String(), ""))}, 1, "free the address"},
		"telemetry that is wrong": {[]string{"gateway", "--config", file("e.yaml", gateway("127.0.0.1:0", "telemetry: {sample: 2}\n"))}, 2, "sample"},
		"demo with a wrong flag":  {[]string{"demo", "--wan", "1h"}, 2, "--wan"},
		"a good document":         {[]string{"policy", "check", good}, 0, ""},
		"one that is warned of":   {[]string{"policy", "check", warned}, 0, ""},
		"the same, strictly":      {[]string{"policy", "check", "--strict", warned}, 1, ""},
		"one that is refused":     {[]string{"policy", "check", file("refused.yaml", "schema: 2\n")}, 1, ""},
		"one that is missing":     {[]string{"policy", "check", filepath.Join(dir, "none.yaml")}, 2, "none.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, complaints bytes.Buffer
			if got := annona(t, row.args, &out, &complaints); got != row.want || !strings.Contains(complaints.String(), row.says) {
				t.Errorf("annona %s: exit %d, complains %q; want %d and %q", strings.Join(row.args, " "), got, complaints.String(), row.want, row.says)
			}
			if row.want == 0 && complaints.Len() > 0 || row.says != "" && !strings.HasPrefix(complaints.String(), "annona: ") {
				t.Errorf("complains %q", complaints.String())
			}
		})
	}
}

// annona runs one command line and returns its exit code.
func annona(t *testing.T, args []string, out, complaints *bytes.Buffer) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shared.bin.Annona, args...)
	cmd.Stdout, cmd.Stderr = out, complaints
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	if code := annona(t, []string{"version"}, &out, &out); code != 0 || !strings.HasPrefix(out.String(), "annona ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("exit %d: %q", code, out.String())
	}
}
