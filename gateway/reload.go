package gateway

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/config"
)

// live are the settings that a reload changes; all others need a restart.
var live = []string{
	"enforcement", "headers", "reset", "retry_jitter", "policies", "tls.cert", "tls.key",
}

// Reload reads the configuration again, then the files that it names, as SIGHUP asks. A configuration that is wrong in any part
// changes nothing; a file that cannot be used leaves in use what was read before. All that is wrong is logged and returned. It
// asks nobody: with `enforcement: shadow` it is the red button that works when everything else is out.
func (g *Gateway) Reload(ctx context.Context) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	err := g.reloadConfig(ctx)
	if err == nil {
		for _, again := range g.reloads {
			err = errors.Join(err, again())
		}
	}
	if err != nil {
		g.telemetry.Log.ErrorContext(ctx, "reload: what cannot be used changes nothing", "error", err)
		return err
	}
	g.telemetry.Log.InfoContext(ctx, "reloaded", "enforcement", g.current.Enforcement)
	return nil
}

// reloadConfig takes over what can change while the gateway runs.
func (g *Gateway) reloadConfig(ctx context.Context) error {
	if g.config.Reread == nil {
		return nil
	}
	cfg, err := g.config.Reread()
	if err != nil {
		return err
	}
	if err = cfg.Validate(); err != nil {
		return fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	if names := changed(reflect.ValueOf(g.config), reflect.ValueOf(cfg), ""); len(names) > 0 {
		g.telemetry.Log.WarnContext(ctx, "settings changed that need a restart; they stay as they are until then", "settings", names)
	}
	g.use(cfg)
	return nil
}

// use puts the live settings of cfg in use, all but the files.
func (g *Gateway) use(cfg Config) {
	g.current = cfg
	g.fields.Store(&fields{
		sets: cfg.Headers, jitter: float64(cfg.RetryJitter), epoch: cfg.Reset == epoch, now: time.Now, random: mathrand.Float64,
	})
	g.admitter.SetShadow(cfg.Enforcement == shade)
}

// rereadCertificate and rereadKeys are reloads. Whether there is TLS at all needs a restart.
func (g *Gateway) rereadCertificate() error {
	if g.config.TLS == nil {
		return nil
	}
	return g.readCertificate(g.current.TLS)
}

func (g *Gateway) rereadKeys() error { return g.identity.Reload() }

// changed lists the settings that differ and cannot change while the gateway runs, by their paths.
func changed(from, to reflect.Value, path string) (names []string) {
	if from.Kind() == reflect.Pointer && !from.IsNil() && !to.IsNil() {
		return changed(from.Elem(), to.Elem(), path)
	}
	if from.Kind() != reflect.Struct {
		if slices.Contains(live, path) || reflect.DeepEqual(from.Interface(), to.Interface()) {
			return nil
		}
		return []string{path}
	}
	for field := range from.Type().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name == "" || name == "-" {
			continue // not a setting: what the process was given
		}
		below := strings.TrimPrefix(path+"."+name, ".")
		names = append(names, changed(from.FieldByIndex(field.Index), to.FieldByIndex(field.Index), below)...)
	}
	return names
}
