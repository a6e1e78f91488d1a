package peer

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Versions returns the versions of the installed servers of the peers. The versions of Go modules are not among them.
func Versions(ctx context.Context) map[string]string {
	v := make(map[string]string)
	if postgresMissing() == nil {
		if path, err := postgres("postgres"); err == nil {
			if out, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil {
				v["PostgreSQL"] = strings.TrimSpace(string(out))
			}
		}
	}
	if rabbitMissing() == nil {
		// Such as .../rabbitmq_server-3.10.8/sbin/rabbitmq-defaults.
		if path, err := filepath.EvalSymlinks(filepath.Join(filepath.Dir(rabbitServer),
			"rabbitmq-defaults")); err == nil {
			v["RabbitMQ"] = strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(path))), "rabbitmq_server-")
		}
	}
	if script, err := bullmqScript(); err == nil {
		var manifest struct{ Version string }
		text, err := os.ReadFile(filepath.Join(filepath.Dir(script), "node_modules", "bullmq", "package.json"))
		if err == nil && json.Unmarshal(text, &manifest) == nil {
			v["BullMQ"] = manifest.Version
		}
		if out, err := exec.CommandContext(ctx, "node", "--version").Output(); err == nil {
			v["Node.js"] = strings.TrimSpace(string(out))
		}
	}
	return v
}
