package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// TLS is gateway.yaml's `tls` section: PEM files, the certificate with its chain. They are read again on SIGHUP.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

func (t *TLS) validate() error {
	if t != nil && (t.Cert == "" || t.Key == "") {
		return errors.New("tls: name both files, cert and key, or remove the section")
	}
	return nil
}

// readCertificate puts the certificate of t's files in use. What cannot be used changes nothing.
func (g *Gateway) readCertificate(t *TLS) error {
	if t == nil {
		return nil
	}
	certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return fmt.Errorf("tls: %w; give a certificate and its key as PEM files", err)
	}
	g.certificate.Store(&certificate)
	return nil
}

// serve accepts clients until the server is shut down.
func (g *Gateway) serve() error {
	readers := slowReaders{g.addresses.Listener(g.listener), g.patience.write}
	if g.config.TLS == nil {
		return g.server.Serve(readers) //nolint:wrapcheck // Run's caller knows what serves
	}
	return g.server.ServeTLS(readers, "", "") //nolint:wrapcheck // as above
}

// tlsConfig asks for the certificate at every handshake, so that a new one needs no restart.
func (g *Gateway) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.certificate.Load(), nil },
	}
}
