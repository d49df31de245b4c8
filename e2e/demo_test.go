package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/annona-gateway/annona/deployments/demo"
	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/e2e/oracle"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// demoPorts, in the environment, makes this test binary be a demo on those ports: a process that a test can kill.
const demoPorts = "ANNONA_E2E_DEMO_PORTS"

const demoToken = "an-operator-token-of-the-tests"

// runDemo is the demo process.
func runDemo(ports []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tel, err := telemetry.Start(ctx, telemetry.Config{Role: "demo", Log: os.Stderr})
	if err != nil {
		return err
	}
	d, err := demo.Open(ctx, demo.Options{
		Data: os.Getenv(demoPorts + "_DATA"), OneWay: 20 * time.Millisecond,
		Token: demoToken, Places: placesAt(ports),
	}, tel)
	if err != nil {
		return err
	}
	return errors.Join(d.Run(ctx), d.Close())
}

// placesAt are a demo's addresses: the admin port, then two for each region.
func placesAt(ports []string) demo.Places {
	p := demo.DefaultPlaces()
	p.Admin = "127.0.0.1:" + ports[0]
	for i := range p.Regions {
		p.Regions[i].Gateway, p.Regions[i].Admin = "127.0.0.1:"+ports[1+2*i], "127.0.0.1:"+ports[2+2*i]
	}
	return p
}

// startDemo starts a demo process on dir and waits until it is ready.
func startDemo(t *testing.T, dir string, ports []string, log ...io.Writer) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), demoPorts+"="+strings.Join(ports, ","), demoPorts+"_DATA="+dir)
	cmd.Stderr = io.MultiWriter(append(log, t.Output())...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	cluster.Eventually(t, 20*time.Second, "ready", func() bool { return cluster.Ready("http://127.0.0.1:" + ports[0]) })
	return cmd
}

func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		port, err := buckettest.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, fmt.Sprint(port))
	}
	return ports
}

// The whole demo killed and restarted on the same --data: no quota twice. Its stores forget everything, its journal nothing.
func TestPromise1WholeDemoKilledAndRestarted(t *testing.T) {
	dir, ports := t.TempDir(), freePorts(t, 7)
	var answers []oracle.Answer
	spend := func() {
		for i := range 24 {
			g := &cluster.Gateway{URL: "http://127.0.0.1:" + ports[1+2*(i%3)]}
			answers = append(answers, cluster.Get(t.Context(), g, "", "demo-alice", "/login"))
		}
	}
	for range 3 {
		process := startDemo(t, dir, ports)
		spend()
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = process.Wait()
	}
	if err := oracle.Bound(answers, 6, 0.1); err != nil {
		t.Errorf("promise 1: %v", err)
	}
	if ok := oracle.Count(answers, http.StatusOK); ok < 6 {
		t.Errorf("%d admitted, want the 6 of the burst", ok)
	}
}

// Policies that were changed stay over a restart, and nobody is told of a difference to a document that nobody gave.
func TestDemoKeepsItsPolicies(t *testing.T) {
	dir, ports := t.TempDir(), freePorts(t, 7)
	url := "http://127.0.0.1:" + ports[0] + "/admin/v1/policies"
	call := func(method, match, body string) (tag, text string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + demoToken}, "Content-Type": {"application/yaml"}}
		if match != "" {
			req.Header.Set("If-Match", match)
		}
		resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v: %s", method, resp.Status, err, answer)
		}
		return resp.Header.Get("ETag"), string(answer)
	}
	process := startDemo(t, dir, ports)
	tag, before := call(http.MethodGet, "", "")
	if before != string(demo.DefaultPolicies) {
		t.Errorf("a first start has %q, want the built-in document", before)
	}
	after := before + "# changed\n"
	call(http.MethodPut, tag, after)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	var log strings.Builder
	process = startDemo(t, dir, ports, &log)
	if _, got := call(http.MethodGet, "", ""); got != after {
		t.Errorf("after a restart: %q, want what was put", got)
	}
	_ = process.Process.Signal(syscall.SIGTERM)
	_ = process.Wait()
	if strings.Contains(log.String(), "differ") {
		t.Errorf("the demo tells of a difference:\n%s", log.String())
	}
}

// One request that waits for a lease is one trace, from the gateway to the journal and back.
func TestOneTraceFromGatewayToJournal(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tel, err := telemetry.Start(t.Context(), telemetry.Config{Role: "demo", Sample: 1, Exporter: spans, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	ports := freePorts(t, 7)
	d, err := demo.Open(t.Context(), demo.Options{
		Policies: demo.DefaultPolicies, OneWay: 20 * time.Millisecond, Token: demoToken, Places: placesAt(ports),
	}, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- errors.Join(d.Run(ctx), d.Close()) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the end of the demo: %v", err)
		}
	})
	cluster.Eventually(t, 20*time.Second, "ready", func() bool { return cluster.Ready("http://127.0.0.1:" + ports[0]) })
	answer := cluster.Get(t.Context(), &cluster.Gateway{URL: "http://127.0.0.1:" + ports[1]}, "eu", "demo-carol", "/login")
	if answer.Status != http.StatusOK {
		t.Fatalf("status %d, want 200", answer.Status)
	}
	want := []string{"take", "lease wait", "lease ask", "lease decide", "journal append"}
	cluster.Eventually(t, 10*time.Second, fmt.Sprintf("one trace with %q", want), func() bool {
		_ = tel.Provider.ForceFlush(t.Context())
		return oneTraceHas(spans.GetSpans(), want)
	})
}

// oneTraceHas tells whether the trace of some `lease wait` has every wanted span.
func oneTraceHas(spans tracetest.SpanStubs, want []string) bool {
	for _, start := range spans {
		if start.Name != "lease wait" {
			continue
		}
		var names []string
		for _, span := range spans {
			if span.SpanContext.TraceID() == start.SpanContext.TraceID() {
				names = append(names, span.Name)
			}
		}
		if !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(names, name) }) {
			return true
		}
	}
	return false
}
