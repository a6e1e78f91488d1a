package deploytest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The release is made by the goreleaser whose check CI runs, for the systems that are promised, and says its version.
func TestRelease(t *testing.T) {
	var file struct {
		Builds []struct {
			Main, Binary   string
			Goos, Goarch   []string
			Flags, Ldflags []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../.goreleaser.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	build := file.Builds[0]
	if !slices.Equal(build.Goos, []string{"linux", "darwin"}) || !slices.Equal(build.Goarch, []string{"amd64", "arm64"}) {
		t.Errorf("binaries for %v, %v", build.Goos, build.Goarch)
	}
	const stamp = "-X main.version="
	for name, text := range map[string]string{
		".goreleaser.yaml": strings.Join(build.Ldflags, " "), "the Makefile": read(t, "../../Makefile"), "the Dockerfile": read(t, "../Dockerfile"),
	} {
		if !strings.Contains(text, stamp) {
			t.Errorf("%s does not stamp the version: no %s", name, stamp)
		}
	}
	pinned := regexp.MustCompile(`(?m)^GORELEASER_VERSION := (\S+)$`).FindStringSubmatch(read(t, "../../Makefile"))
	workflow := read(t, "../../.github/workflows/release.yml")
	if len(pinned) != 2 || !strings.Contains(workflow, "version: "+pinned[1]+" ") {
		t.Errorf("the Makefile has goreleaser %v, the release another one", pinned)
	}
	if err := yaml.Unmarshal([]byte(workflow), &map[string]any{}); err != nil {
		t.Errorf("release.yml: %v", err)
	}
	for _, want := range []string{"file: deploy/Dockerfile", "build-args: VERSION=", "helm package deploy/helm/timerd"} {
		if !strings.Contains(workflow, want) {
			t.Errorf("release.yml has no %q", want)
		}
	}
}
