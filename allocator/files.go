package allocator

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// maxFile bounds a file that the configuration names.
const maxFile = 1 << 20

// readFiles reads and checks every file that the configuration names, and reports all that is wrong at once.
func (a *Allocator) readFiles() ([]admin.Credential, error) {
	credentials, credentialsErr := a.readCredentials()
	return credentials, errors.Join(credentialsErr, a.readSecret(), a.readPolicies(), a.checkTLS())
}

func (a *Allocator) readCredentials() ([]admin.Credential, error) {
	if a.cfg.CredentialsFile == "" {
		if err := admin.CheckCredentials(a.cfg.Credentials); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		return a.cfg.Credentials, nil
	}
	source, err := readFile("credentials", a.cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	credentials, err := admin.ParseCredentials(source)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", a.cfg.CredentialsFile, err)
	}
	return credentials, nil
}

func (a *Allocator) readSecret() error {
	raw := a.cfg.Secret
	if a.cfg.HashSecretFile != "" {
		var err error
		if raw, err = readFile("hash_secret_file", a.cfg.HashSecretFile); err != nil {
			return err
		}
		raw = bytes.TrimSpace(raw) // an editor's newline is not part of the secret
	}
	var err error
	if a.secret, err = limit.NewSecret(raw); err != nil {
		return fmt.Errorf("hash_secret_file: %w", err)
	}
	return nil
}

func (a *Allocator) readPolicies() error {
	a.policies = a.cfg.Policies
	name := "policies"
	if a.cfg.PoliciesFile != "" {
		name = a.cfg.PoliciesFile
		var err error
		if a.policies, err = readFile("policies", name); err != nil {
			return err
		}
	}
	if len(a.policies) == 0 {
		return nil
	}
	_, problems := policy.Parse(a.policies)
	if problems.Refused() {
		return fmt.Errorf("%s (annona policy check shows it too):\n%w", name, problems.Err())
	}
	return nil
}

// readFile reads the file that a setting names.
func readFile(setting, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxFile {
		return nil, fmt.Errorf("%s: %s has %d bytes; it may have %d", setting, path, info.Size(), maxFile)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err) // names the path
	}
	return data, nil
}

func (a *Allocator) checkTLS() error {
	if a.cfg.TLS.Cert == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(a.cfg.TLS.Cert, a.cfg.TLS.Key); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	return nil
}
