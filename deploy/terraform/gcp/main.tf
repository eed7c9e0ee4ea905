# A pool of agents on Google Cloud: one network, one zone, one machine per entry, from the image that
# deploy/packer/gcp.pkr.hcl makes.
#
#   evenfall plan deploy FILE --out DIR
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR -var=project=PROJECT

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

provider "google" {
  project = var.project
  zone    = var.zone
}

locals {
  region = substr(var.zone, 0, length(var.zone) - 2)
}

resource "google_compute_network" "pool" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "pool" {
  name          = var.name
  region        = local.region
  network       = google_compute_network.pool.id
  ip_cidr_range = var.subnet
}

# Feed 9000/udp, agents 9400/tcp and udp, health and metrics 9100 and 9101/tcp.
resource "google_compute_firewall" "pool" {
  name          = "${var.name}-inside"
  network       = google_compute_network.pool.name
  source_ranges = concat([var.subnet], var.admin_ranges)
  allow {
    protocol = "udp"
    ports    = ["9000", "9400"]
  }
  allow {
    protocol = "tcp"
    ports    = ["9100-9101", "9400"]
  }
}

resource "google_service_account" "pool" {
  account_id = "${var.name}-pool"
}

resource "google_secret_manager_secret_iam_member" "key" {
  secret_id = var.key_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.pool.email}"
}

resource "google_compute_instance" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  name         = each.key
  machine_type = var.machine_type
  boot_disk {
    initialize_params {
      image = var.image
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.pool.id
    network_ip = each.value.address
    access_config {}
  }
  service_account {
    email  = google_service_account.pool.email
    scopes = ["cloud-platform"]
  }
  metadata = {
    evenfall-agents = file("${var.settings_dir}/agents.toml")
    evenfall-feed   = file("${var.settings_dir}/feed.toml")
    evenfall-plan   = file("${var.settings_dir}/plan.toml")
  }
  depends_on = [google_secret_manager_secret_iam_member.key]
  # Settings come from the metadata; the key from the secret, at boot, and never into an image.
  metadata_startup_script = <<-END
    #!/bin/bash
    set -euo pipefail
    meta=http://metadata.google.internal/computeMetadata/v1/instance
    install -d -m 755 /etc/evenfall
    for what in agents feed plan; do
      curl -fsS -H Metadata-Flavor:Google $meta/attributes/evenfall-$what >/etc/evenfall/$what.toml
    done
    umask 077
    # The right to read it may arrive later than the machine.
    until gcloud secrets versions access latest --secret=${var.key_secret} >/etc/evenfall/evenfall.key; do
      sleep 5
    done
    systemctl enable --now evenfall@agent:${each.key}
    ${each.value.index == 0 ? "systemctl enable --now --no-block evenfall-plan" : ""}
    ${var.start_feed ? "systemctl enable --now evenfall@${each.value.feed_role}:${each.value.feed_name}" : ""}
  END
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
