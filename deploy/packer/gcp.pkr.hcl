# An image with the static binary and the unit, and no key.
#
#   deploy/docker/build.sh && packer build -var project=PROJECT deploy/packer/gcp.pkr.hcl

packer {
  required_plugins {
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1.0"
    }
  }
}

variable "project" {
  type = string
}

variable "zone" {
  type    = string
  default = "us-central1-a"
}

variable "binary" {
  type    = string
  default = "target/x86_64-unknown-linux-gnu/image/evenfall"
}

source "googlecompute" "evenfall" {
  project_id          = var.project
  zone                = var.zone
  source_image_family = "debian-12"
  image_family        = "evenfall"
  image_name          = "evenfall-{{timestamp}}"
  machine_type        = "e2-small"
  ssh_username        = "packer"
}

build {
  sources = ["source.googlecompute.evenfall"]

  provisioner "file" {
    source      = var.binary
    destination = "/tmp/evenfall"
  }
  provisioner "file" {
    source      = "deploy/systemd/evenfall@.service"
    destination = "/tmp/evenfall@.service"
  }
  provisioner "file" {
    source      = "deploy/systemd/evenfall-plan.service"
    destination = "/tmp/evenfall-plan.service"
  }
  provisioner "shell" {
    inline = [
      "sudo install -m 755 /tmp/evenfall /usr/local/bin/evenfall",
      "sudo install -m 644 /tmp/evenfall@.service /etc/systemd/system/evenfall@.service",
      "sudo install -m 644 /tmp/evenfall-plan.service /etc/systemd/system/evenfall-plan.service",
      "sudo apt-get update -qq && sudo apt-get install -y -qq chrony",
    ]
  }
}
