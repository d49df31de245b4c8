package config_test

import (
	"math"
	"testing"

	"github.com/annona-gateway/annona/shared/config"
)

func TestPercent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Percent{"0": 0, "0%": 0, "10%": 0.1, "100 %": 1, "0.5%": 0.005} {
		var got config.Percent
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "10", "-1%", "101%", "NaN%", "Inf%", "ten%", "1%%"} {
		got := config.Percent(0.5)
		if err := got.UnmarshalText([]byte(text)); err == nil || got != 0.5 {
			t.Errorf("%q = %v, %v, want an error and no change", text, got, err)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Bytes{
		"0": 0, "512": 512, "512B": 512, "2KiB": 2048, "10MiB": 10 << 20, "10 MiB": 10 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40,
		"1kB": 1000, "1KB": 1000, "10MB": 10_000_000, "1GB": 1e9, "1TB": 1e12, "9223372036854775807": math.MaxInt64,
	} {
		var got config.Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "MiB", "-1", "-1KiB", "1.5MiB", "10Mib", "10M", "9000000TiB", "9223372036854775808", "1KiBB"} {
		got := config.Bytes(7)
		if err := got.UnmarshalText([]byte(text)); err == nil || got != 7 {
			t.Errorf("%q = %d, %v, want an error and no change", text, got, err)
		}
	}
}
