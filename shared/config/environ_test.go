package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/config"
)

func TestTheEnvironmentWinsOverTheFile(t *testing.T) {
	t.Parallel()
	got, err := load(t, "region: eu\nredis: {mode: m}\ntls: {cert: c, key: k}\n",
		"PATH=/bin", "ANNONA_REGION=true", "ANNONA_REDIS_TIMEOUT=20ms", "ANNONA_REDIS_ADDRS=a:1, it's:2", "ANNONA_REDIS_POOL_SIZE=9",
		"ANNONA_TLS_KEY=#k=2", "ANNONA_RETRY_JITTER=5%", "ANNONA_ROUTES=[{name: api, max_body: 1KiB}]", "ANNONA_RESET=false",
		"ANNONA_ADMIN=:2", "ANNONA_GROUPS={a: [1, 2]}", "ANNONA_SAMPLE=0.5", "ANNONA_SAMPLE=0.25", "ANNONA_ADMIN_TOKEN=secret")
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Region, want.Redis.Mode, want.Redis.Timeout, want.Redis.PoolSize = "true", "m", 20*time.Millisecond, 9
	want.Redis.Addrs, want.TLS, want.Jitter = []string{"a:1", "it's:2"}, &files{Cert: "c", Key: "#k=2"}, 0.05
	want.Routes, want.Reset, want.Common.Admin = []route{{Name: "api", MaxBody: 1 << 10}}, new(false), ":2"
	want.Groups, want.Sample = map[string][]int{"a": {1, 2}}, 0.25
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

func TestASectionThatTheFileLeavesOutCanComeFromTheEnvironment(t *testing.T) {
	t.Parallel()
	got, err := load(t, "", "ANNONA_TLS_CERT=c")
	if err != nil || got.TLS == nil || got.TLS.Cert != "c" {
		t.Errorf("Load = %+v, %v, want tls.cert c", got.TLS, err)
	}
}

func TestAListMayBeWrittenAsYAMLOrWithCommas(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"a": {"a"}, "a,b": {"a", "b"}, " a , b ": {"a", "b"}, `["a,b", c]`: {"a,b", "c"}, "a: b": {"a: b"},
	} {
		got, err := load(t, "", "ANNONA_REDIS_ADDRS="+text)
		if err != nil || !cmp.Equal(want, got.Redis.Addrs) {
			t.Errorf("ANNONA_REDIS_ADDRS=%s: %q, %v, want %q", text, got.Redis.Addrs, err, want)
		}
	}
}

func TestAnEmptyVariableCountsAsNotSet(t *testing.T) {
	t.Parallel()
	got, err := load(t, "region: eu", "ANNONA_REGION=", "ANNONA_REDIS_TIMEOUT=", "ANNONA_REDIS_ADDRS=")
	if err != nil || got.Region != "eu" || len(got.Redis.Addrs) != 1 || got.Redis.Timeout != time.Second {
		t.Errorf("Load = %+v, %v, want the file and the defaults", got, err)
	}
}

func TestAVariableThatNobodyReadsIsAMistakeAndNoValueIsQuoted(t *testing.T) {
	t.Parallel()
	_, err := load(t, "", "ANNONA_REDIS_TIMEUOT=hunter2", "ANNONA_REDIS_POOL_SIZE=hunter2", "ANNONA_RETRY_JITTER=hunter2",
		"ANNONA_ROUTES=[{hunter: 2}]", "ANNONA_REDIS_SERVERID=hunter2", "ANNONA_=hunter2", "ANNONA_RESET=hunter2: [")
	if err == nil {
		t.Fatal("Load = nil")
	}
	for _, want := range []string{
		"ANNONA_REDIS_TIMEUOT is unknown; unset it, or use one of: ANNONA_REDIS_TIMEOUT\n",
		"ANNONA_REDIS_POOL_SIZE: this does not fit; write a whole number\n",
		"ANNONA_RETRY_JITTER: write a share from 0% to 100%",
		"ANNONA_ROUTES: [0].hunter is unknown; known here: forward, max_body, name",
		"ANNONA_REDIS_SERVERID is unknown; ",
		"ANNONA_ is unknown; ",
		"ANNONA_RESET: ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want it to say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Load = %v, which shows a value", err)
	}
}

func TestTwoSettingsWithOneVariableAreAMistakeOfOurs(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic where ANNONA_A_B would be both a.b and a_b")
		}
	}()
	var into struct {
		A struct {
			B string `yaml:"b"`
		} `yaml:"a"`
		AB string `yaml:"a_b"`
	}
	_ = config.Load("", []string{"ANNONA_A_B=x"}, &into)
}

func TestLoadIntoSomethingElseIsAMistakeOfOurs(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic for a target that is no pointer to a struct")
		}
	}()
	if err := config.Load("", nil, role{}); !errors.Is(err, config.ErrUsage) {
		t.Error(err)
	}
}
