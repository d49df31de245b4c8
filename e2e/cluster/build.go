package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Binaries are the programs that a cluster runs.
type Binaries struct{ Annona, NATS, Redis string }

// Build compiles annona and nats-server (a tool of go.mod) into dir and finds redis-server.
func Build(dir string) (Binaries, error) {
	b := Binaries{Annona: filepath.Join(dir, "annona"), NATS: filepath.Join(dir, "nats-server")}
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return b, fmt.Errorf("cannot tell where the source is")
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(here)))
	for out, pkg := range map[string]string{b.Annona: ".", b.NATS: "github.com/nats-io/nats-server/v2"} {
		cmd := exec.Command("go", "build", "-o", out, pkg)
		cmd.Dir = root
		if text, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("build %s: %w\n%s", pkg, err, text)
		}
	}
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		return b, fmt.Errorf("redis-server is missing; `make test` installs it: %w", err)
	}
	b.Redis = redis
	return b, nil
}
