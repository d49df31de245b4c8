package gateway

import "context"

// Reload reads the files again that the configuration names, as SIGHUP asks. A file that cannot be used leaves in use what was
// read before. All that is wrong is logged and returned.
func (g *Gateway) Reload(ctx context.Context) error {
	if err := g.identity.Reload(); err != nil {
		g.telemetry.Log.ErrorContext(ctx, "reload: what cannot be used changes nothing", "error", err)
		return err
	}
	g.telemetry.Log.InfoContext(ctx, "reloaded")
	return nil
}
